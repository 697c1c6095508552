"""Names that an exported function cannot have, whatever its language: a field is written in any of them."""

from __future__ import annotations

import builtins
import keyword

#: Of C and C++ with what the source includes, of GLSL, WGSL and Slang, and what the sources themselves use.
_WORDS = """
abort abs abstract acos acosh active alignas alignof all and any array asin asinh asm assert atan atan2 atanh atomic
attribute auto await become bit_and bitcast bitor bool bool2 break buffer calloc case cast cbrt ceil centroid cfg char
char16_t char32_t char8_t clamp class coherent common common_type compl complex concept const consteval constexpr
constinit continue copysign cos cosf cosh countbits crate cross data debugger decltype default degrees delete demote
determinant device diagnostic discard distance div do dot double drem dvec2 dvec3 dvec4 dynamic_cast each elif else
enable entry enum equal erf erfc exit exp exp10 exp2 expf explicit expm1 export extends extern external f16 f32 fabs
fabsf faceforward fallthrough false fdim fget filter filterrect final finally finite fixed flat float float2 float3
float4 floor floorf fma fmax fmin fmod fn for fputc fputs fract free frexp friend from function fwidth gamma get getc
goto half half2 handle highp hvec2 hvec3 hvec4 hypot i32 if ilogb image impl implements import imulextended in
infinity inline inout input instanceof int int16_t int2 int32_t int64_t int8_t interface interp intptr_t invariant
inverse inversesqrt is isampler2d isfinite isinf isnan isnormal ivec2 ivec3 ivec4 j0 j1 jacobian jn key layout ldexp
ldiv length lerp let lgamma link llrint llround lod log log10 log1p log2 logb logf long loop lowp lrint lround m_e
m_pi macro main malloc mat mat2 mat2x2 mat2x3 mat2x4 mat3 mat3x2 mat3x3 mat3x4 mat4 mat4x2 mat4x3 mat4x4 match math
max mediump memchr memcmp memcpy memmove memset meta min mix mod modf module move mulhi mut mutable mutex namespace
nan native nearbyint nearest new nextafter nexttoward nil noexcept noinline nointerpolation nonlocal noperspective
normalize not notequal np null nullptr offsetof on operator or out outerproduct output override package packed
partition pass patch pi pixelfragment pointer posix pow pow10 precise precision printf private protected ptr ptrdiff_t
public putc puts qsort quantize radians raise rand random rcp readonly realloc ref reflect refract regardless register
register_t reinterpret_cast remainder remove remquo rename require requires resource restrict return rint rintf round
roundeven rsqrt sample sampler sampler1d sampler2d sampler3d samplercube samples saturate scalb scalbln scalbn scanf
select self set shared short sign signbit signed significand sin sincos sinf sinh size_t sizeof smooth smoothstep
snappedto sprintf sqrt sqrtf srand static static_assert static_cast std step storage strcat strchr strcmp strcpy
strlen strncmp strtod struct subpassinput subroutine subsystem super superp switch tanh tanhf target template texel
texelfetch texture texture2d texturesize tgamma this thread_local throw trait transpose trap true trunc try type
typedef typeid typename typeof u32 uint uint16_t uint2 uint32 uint32_t uint64_t uint8_t uintptr_t umulextended uniform
union unless unorm unpack unsafe unsigned unsized usampler2d use using uvec2 uvec3 uvec4 var var_ varying vec vec1
vec2 vec3 vec4 virtual void volatile volatile_ wchar_t weights wgsl where while with words workgroup writeonly
writeonly_ x xor xor_eq y y0 y1 yield yn zfail
"""
_TAKEN = {word.lower() for word in (*_WORDS.split(), *keyword.kwlist, *dir(builtins))}


def reserved(name: str) -> bool:
    """Does ``name`` mean something in one of the languages, in whatever case?"""
    return name.lower() in _TAKEN or name.lower().startswith("gl_")
