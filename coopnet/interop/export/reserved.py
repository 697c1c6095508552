"""Names that an exported function cannot have, in any language: the same name works for all targets."""

from __future__ import annotations

import builtins
import keyword
import re

#: Functions of ``<math.h>`` by their names for double precision: of C23, POSIX, BSD and GNU.
_MATH = """
acos acosh acospi asin asinh asinpi atan atan2 atan2pi atanh atanpi canonicalize cbrt ceil compoundn copysign cos
cosh cospi drem erf erfc exp exp10 exp10m1 exp2 exp2m1 expm1 fabs fdim finite floor fma fmax fmaximum fmaximum_mag
fmaximum_mag_num fmaximum_num fmaxmag fmin fminimum fminimum_mag fminimum_mag_num fminimum_num fminmag fmod frexp
fromfp fromfpx gamma getpayload hypot ilogb isinf isnan j0 j1 jn ldexp lgamma llogb llrint llround log log10 log10p1
log1p log2 log2p1 logb logp1 lrint lround modf nan nearbyint nextafter nextdown nexttoward nextup pow pow10 pown
powr remainder remquo rint rootn round roundeven rsqrt scalb scalbln scalbn setpayload setpayloadsig significand sin
sincos sinh sinpi sqrt tan tanh tanpi tgamma totalorder totalordermag trunc ufromfp ufromfpx y0 y1 yn
"""

#: Names of the other C headers that the source includes, and keywords of C and C++.
_C = """
a64l aligned_alloc alloca arc4random arc4random_buf arc4random_uniform at_quick_exit atexit atof atoi atol atoll
basename bcmp bcopy be16toh be32toh be64toh big_endian bsearch byte_order bzero canonicalize_file_name clearenv cr
domain drand48 drand48_r ecvt ecvt_r erand48 erand48_r exception exit_failure exit_success explicit_bzero fcvt
fcvt_r fd_clr fd_isset fd_mask fd_set fd_setsize fd_zero ffs ffsl ffsll fpclassify gcvt getenv getloadavg getpt
getsubopt grantpt htobe16 htobe32 htobe64 htole16 htole32 htole64 index initstate initstate_r iscanonical iseqsig
isgreater isgreaterequal isless islessequal islessgreater isnormal issignaling issubnormal isunordered iszero
jrand48 jrand48_r l64a labs lcong48 lcong48_r ldouble le16toh le32toh le64toh linux little_endian llabs lldiv
lrand48 lrand48_r matherr maxfloat mb_cur_max mblen mbstowcs mbtowc mkdtemp mkostemp mkostemp64 mkostemps
mkostemps64 mkstemp mkstemp64 mkstemps mkstemps64 mktemp mrand48 mrand48_r nfdbits nrand48 nrand48_r on_exit
overflow pdp_endian ploss posix_memalign posix_openpt pselect ptsname ptsname_r putenv qecvt qecvt_r qfcvt qfcvt_r
qgcvt qsort_r quick_exit rand_max rand_r random_r rawmemchr reallocarray reallocf realpath rindex rpmatch
secure_getenv seed48 seed48_r setenv setstate setstate_r sigabbrev_np sigdescr_np signgam sing srand48 srand48_r
srandom srandom_r stpcpy stpncpy swab system tloss u_char u_int u_long u_short ulong underflow unix unlockpt unreachable
unsetenv ushort valloc wcontinued wctomb wexited wexitstatus wifcontinued wifexited wifsignaled wifstopped wnohang
wnowait wstopped wstopsig wtermsig wuntraced
"""
_CPP = """
alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor break case catch cdecl
char class co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue
contract_assert decltype default delete do dynamic_cast else enum explicit export extern false far fastcall for
fortran friend goto if import inline interface long module mutable namespace near new noexcept not not_eq nullptr
operator or or_eq pascal private protected public reflexpr register reinterpret_cast requires restrict return short
signed sizeof static static_assert static_cast stdcall switch synchronized template this thread_local throw true try
typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile while xor xor_eq
"""

_GLSL = """
absolutedifference active addsaturate allinvocations allinvocationsequal anyinvocation atomic_uint attribute average
averagerounded barrier bitcount bitfieldextract bitfieldinsert bitfieldreverse buffer centroid coherent common
controlbarrier countleadingzeros counttrailingzeros defined demote dfdx dfdxcoarse dfdxfine dfdy dfdycoarse dfdyfine
discard doublebitstoint64 doublebitstouint64 elif emitstreamvertex emitvertex endif endprimitive endstreamprimitive
extension external faceforward filter findlsb findmsb fixed flat float16bitstoint16 float16bitstouint16
floatbitstoint floatbitstouint ftransform fwidth fwidthcoarse fwidthfine greaterthan greaterthanequal
groupmemorybarrier halfbitstoint16 halfbitstouint16 highp ifdef ifndef imulextended include inout input
int16bitstofloat16 int16bitstohalf intbitstofloat interpolateatcentroid interpolateatoffset interpolateatsample
invariant inverse inversesqrt layout lessthan lessthanequal line lowp matrixcompmult max3 mediump mid3 min3 mix
multiply32x16 noinline noperspective notequal out outerproduct output pack16 pack32 pack64 packdouble2x32
packfloat2x16 packhalf2x16 packint2x16 packint2x32 packint4x16 packsnorm2x16 packsnorm4x8 packuint2x16 packuint2x32
packuint4x16 packunorm2x16 packunorm4x8 partition patch pragma precise precision readonly resource sample shared
smooth smoothstep subroutine subsume subtractsaturate superp uaddcarry uint16bitstofloat16 uint16bitstohalf
uintbitstofloat umulextended undef uniform unpackdouble2x32 unpackfloat2x16 unpackhalf2x16 unpackint2x32
unpacksnorm2x16 unpacksnorm4x8 unpackuint2x32 unpackunorm2x16 unpackunorm4x8 usubborrow varying version writeonly
"""
_WGSL = """
alias arraylength asm_fragment bgra8unorm binding_array bitcast column_major compile compile_fragment const_assert
continuing countleadingzeros countonebits counttrailingzeros demote_to_helper diagnostic dot4i8packed dot4u8packed
dpdx dpdxcoarse dpdxfine dpdy dpdycoarse dpdyfine enable extractbits fallthrough finally firstleadingbit
firsttrailingbit fn fxgroup groupshared insertbits let loop macro_rules non_coherent noncoherent override
pack2x16float pack2x16snorm pack2x16unorm pack4x8snorm pack4x8unorm pack4xi8 pack4xi8clamp pack4xu8 pack4xu8clamp
packoffset pixelfragment premerge priv ptr quadbroadcast quadswapdiagonal quadswapx quadswapy quantizetof16 read
read_write reversebits sampler_comparison snorm storagebarrier texturebarrier unorm unpack2x16float unpack2x16snorm
unpack2x16unorm unpack4x8snorm unpack4x8unorm unpack4xi8 unpack4xu8 workgroupbarrier workgroupuniformload write
"""
_SLANG = """
abort allmemorybarrier allmemorybarrierwithgroupsync appendstructuredbuffer asdouble asfloat asfloat16 asint asint16
associatedtype asuint asuint16 bit_cast both buffer bwd_diff byteaddressbuffer cbuffer checkaccessfullymapped clip
cmpxchg constantbuffer constref consumestructuredbuffer coopmat coopvec countbits d3dcolortoubyte4 ddx ddx_coarse
ddx_fine ddy ddy_coarse ddy_fine detach differentiable dispatch dispatchmesh dispatchraysindex dst each
evaluateattributeatsample evaluateattributecentroid evaluateattributesnapped expand export extension f16tof32
f32tof16 firstbithigh firstbitlow func functype fwd_diff fwd_diff_pair getattributeatvertex
getrendertargetsamplecount getrendertargetsampleposition globallycoherent groupmemorybarrierwithgroupsync
implementing inputpatch isfinite lerp let line lineadj linestream lit mad matrix msad4 mul no_diff nodiff none
nonuniformresourceindex optional outputpatch parameterblock payload point pointstream printf processtriquadtess
property ptr rasterizerorderedbuffer rasterizerorderedbyteaddressbuffer rasterizerorderedstructuredbuffer raydesc
rayquery raytracingaccelerationstructure rcp reinterpret reversebits row_major rwbuffer rwbyteaddressbuffer
rwstructuredbuffer samplercomparisonstate saturate select statichandle tbuffer throws traceray triangle triangleadj
trianglestream tuple type_param unexpected uniformity unmodified vector vk where_ workgroupsize
"""

#: Names of several languages, and those that the sources themselves use.
_COMMON = """
of pub abs abstract all any array assert await become bit_and calloc cast cfg clamp common_type complex crate cross data
debugger degrees determinant device distance div dot entry equal exit extends f16 f32 fget filterrect final fputc
fputs fract free from function get getc handle i32 impl implements in instanceof interp is jacobian key ldiv length
link lod macro main malloc match max meta min mod move mulhi mut mutex native nearest nil nointerpolation nonlocal
normalize np null offsetof on package packed pass pi pointer posix putc puts qsort quantize radians raise rand
random realloc ref reflect refract regardless remove rename require samples scanf self set sign signbit snappedto
sprintf srand std step storage subsystem super target texel trait transpose trap type u32 unless unpack unsafe
unsized use var var_ volatile_ weights wgsl where with words workgroup writeonly_ x y yield zfail
"""

#: Families of names, in lower case.
_FAMILIES = (
    # C: the functions of <math.h> for all types of numbers, and the narrower ones of C23
    rf"({'|'.join(_MATH.split())})(f|l|f\d+x?|d\d+)?(_[rl])?",
    r"[fd](\d+x?)?(add|sub|mul|div|fma|sqrt)(l|f\d+x?|d\d+)?",
    # what the C standard reserves for <string.h> and <stdint.h>, and POSIX for all headers
    r"(str|mem|wcs)[a-z]\w*",
    r"\w+_t",
    r"(u?int\w*|ptrdiff|sig_atomic|size|wchar|wint)_(c|max|min|width)",
    # macros of <math.h>
    r"(fp|math)_[a-z]\w*",
    r"m_([12]_)?(e|egamma|ln2|ln10|log2e|log2_e|log10e|phi|pi|pi_[24]|sqrtpi|sqrt[123]|sqrt1_[23])(f|l|f\d+x?)?",
    r"(huge_val|snan|huge|infinity)(_?(f|l|f\d+x?|d\d+))?",
    # types of shaders: vectors, matrices, numbers by their bits
    r"([biudh]|[fiu](8|16|32|64))?(vec[1-4]?|mat[2-4]?(x[2-4])?)[fhiu]?",
    r"(bool|dword|double|half|u?int(8|16|32|64)?|float(16|32|64)?|min1[026](float|u?int))([1-4](x[1-4])?)?",
    # textures and their functions
    r"(rw|rasterizerordered|f16|[iu](64)?)?(texture|image|sampler|subpassinput|texelfetch)(_|1d|2d|3d|array|atomic|add|and|base"
    r"|bias|buffer|clamp|comp|compare|cube|depth|dimensions|edge|exchange|external|fetch|gather|grad|layers|level|levels|load|lod|max"
    r"|min|ms|multisampled|num|offset|offsets|or|proj|query|rect|sample|samples|shadow|size|state|storage|store|swap|to|xor)*",
    r"(tex|shadow)(1d|2d|3d|cube)[a-z]*",
    # operations of several lanes, and noise
    r"atomic(counter)?(add|and|comparestore|compareexchange(weak)?|compswap|decrement|exchange|increment|load|max|min|or|store"
    r"|sub|subtract|xor)?",
    r"(subgroup|interlocked|quadread|wave(active|get|is|match|multiprefix|prefix|read))[a-z]+",
    r"noise[1-4]?",
    r"gl_\w*",
)

_LISTS = (_C, _CPP, _GLSL, _WGSL, _SLANG, _COMMON, " ".join((*keyword.kwlist, *keyword.softkwlist, *dir(builtins))))
_TAKEN = {word.lower() for words in _LISTS for word in words.split()}
_FAMILY = re.compile("|".join(_FAMILIES))


def reserved(name: str) -> bool:
    """Is ``name``, in upper or lower case, reserved in one of the languages?"""
    return name.lower() in _TAKEN or _FAMILY.fullmatch(name.lower()) is not None
