
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
let canvas = document.getElementById("picture");
const WORDS_PER_ROW = 2048;  // of the texture that holds the weights in WebGL 2
const QUICK = 40, BAND = 30;  // milliseconds: of a picture while something moves, and of a part of one
const NUMBERS = 32;  // of what a picture is drawn with

// ---- Two engines: draw rows of a picture, show it when it is whole ----------------------------------------
// What they return has `gone`, a promise that is rejected when the device cannot draw any more.

/** What can be rejected, and when it is, be noticed or not. */
function ending() {
  const end = {};
  end.gone = new Promise((_, reject) => { end.because = (text) => reject(new Error(text)); });
  end.gone.catch(() => {});
  return end;
}

async function webgpu(words) {
  if (!navigator.gpu) throw new Error("is not here, or not in pages of this kind");
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) throw new Error("no device");
  const device = await adapter.requestDevice(), end = ending();
  end.gone.catch(() => device.destroy());  // its memory may be what the next one lacks
  device.lost.then((why) => end.because(`the device was lost: ${why.message}`));
  device.addEventListener("uncapturederror", (event) => end.because(event.error.message));  // such as no memory left
  const format = navigator.gpu.getPreferredCanvasFormat();
  const module = device.createShaderModule({code: data.wgsl});
  const errors = (await module.getCompilationInfo()).messages.filter((m) => m.type === "error");
  if (errors.length) throw new Error(errors[0].message);
  const types = ["read-only-storage", "uniform", "read-only-storage"];
  const visibility = GPUShaderStage.FRAGMENT;
  const layout = device.createBindGroupLayout(
    {entries: types.map((type, binding) => ({binding, visibility, buffer: {type}}))});
  const pipeline = await device.createRenderPipelineAsync({
    layout: device.createPipelineLayout({bindGroupLayouts: [layout]}),
    vertex: {module, entryPoint: "corner"},
    fragment: {module, entryPoint: "main", targets: [{format}]},
  });
  const weights = device.createBuffer({size: words.byteLength, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST});
  device.queue.writeBuffer(weights, 0, words);
  const numbers = device.createBuffer({size: 4 * NUMBERS, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST});
  const entries = [weights, numbers, weights].map((buffer, binding) => ({binding, resource: {buffer}}));
  const group = device.createBindGroup({layout, entries});
  const context = canvas.getContext("webgpu");
  const usage = GPUTextureUsage.RENDER_ATTACHMENT | GPUTextureUsage.COPY_DST;
  context.configure({device, format, usage, alphaMode: "opaque"});
  let target = null;

  return {
    name: "WebGPU",
    gone: end.gone,
    async draw(width, height, top, rows, values) {
      if (!target || target.width !== width || target.height !== height) {
        target?.destroy();
        target = device.createTexture(
          {size: [width, height], format, usage: GPUTextureUsage.RENDER_ATTACHMENT | GPUTextureUsage.COPY_SRC});
      }
      device.queue.writeBuffer(numbers, 0, values);
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginRenderPass(
        {colorAttachments: [{view: target.createView(), loadOp: top ? "load" : "clear", storeOp: "store"}]});
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.setScissorRect(0, top, width, rows);
      pass.draw(3);
      pass.end();
      device.queue.submit([encoder.finish()]);
      await device.queue.onSubmittedWorkDone();
    },
    show() {
      canvas.width = target.width;
      canvas.height = target.height;
      const encoder = device.createCommandEncoder();
      encoder.copyTextureToTexture(
        {texture: target}, {texture: context.getCurrentTexture()}, [target.width, target.height]);
      device.queue.submit([encoder.finish()]);
    },
  };
}

async function webgl2(words) {
  const gl = canvas.getContext("webgl2", {antialias: false, depth: false, alpha: false});
  if (!gl) throw new Error("is not here");
  const end = ending();
  canvas.addEventListener("webglcontextlost", () => end.because("the device was lost"));
  const program = gl.createProgram();
  const corner = `#version 300 es
    void main() { gl_Position = vec4(vec2(gl_VertexID & 1, gl_VertexID >> 1) * 4.0 - 1.0, 0.0, 1.0); }`;
  for (const [type, code] of [[gl.VERTEX_SHADER, corner], [gl.FRAGMENT_SHADER, data.glsl]]) {
    const shader = gl.createShader(type);
    gl.shaderSource(shader, code);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) {
    const logs = gl.getAttachedShaders(program).map((shader) => gl.getShaderInfoLog(shader));
    throw new Error(logs.concat(gl.getProgramInfoLog(program)).filter(Boolean).join(" ") || "the program fails");
  }
  gl.useProgram(program);
  const rowsOfWords = Math.ceil(words.length / WORDS_PER_ROW);
  if (rowsOfWords > gl.getParameter(gl.MAX_TEXTURE_SIZE)) throw new Error("the weights are too many for a texture");
  const filled = new Uint32Array(WORDS_PER_ROW * rowsOfWords);
  filled.set(words);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
  gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
  gl.texImage2D(
    gl.TEXTURE_2D, 0, gl.R32UI, WORDS_PER_ROW, rowsOfWords, 0, gl.RED_INTEGER, gl.UNSIGNED_INT, filled);
  gl.uniform1i(gl.getUniformLocation(program, "words"), 0);
  const place = gl.getUniformLocation(program, "u");
  const target = gl.createRenderbuffer(), frame = gl.createFramebuffer(), pixel = new Uint8Array(4);
  let size = [0, 0];
  gl.bindFramebuffer(gl.FRAMEBUFFER, frame);
  gl.bindRenderbuffer(gl.RENDERBUFFER, target);
  gl.enable(gl.SCISSOR_TEST);

  return {
    name: "WebGL 2",
    gone: end.gone,
    async draw(width, height, top, rows, values) {
      gl.bindFramebuffer(gl.FRAMEBUFFER, frame);
      if (size[0] !== width || size[1] !== height) {
        size = [width, height];
        gl.renderbufferStorage(gl.RENDERBUFFER, gl.RGBA8, width, height);
        gl.framebufferRenderbuffer(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.RENDERBUFFER, target);
      }
      gl.viewport(0, 0, width, height);
      gl.scissor(0, height - top - rows, width, rows);
      gl.uniform4fv(place, values);
      gl.drawArrays(gl.TRIANGLES, 0, 3);
      gl.readPixels(0, height - top - 1, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);  // waits
    },
    show() {
      const [width, height] = size;
      canvas.width = width;
      canvas.height = height;
      gl.bindFramebuffer(gl.READ_FRAMEBUFFER, frame);
      gl.bindFramebuffer(gl.DRAW_FRAMEBUFFER, null);
      gl.scissor(0, 0, width, height);
      gl.blitFramebuffer(0, 0, width, height, 0, 0, width, height, gl.COLOR_BUFFER_BIT, gl.NEAREST);
    },
  };
}

// ---- Three views: what a picture is drawn with, and what hands do to it --------------------------------------

/** A field over the plane. Places and sizes are in its coordinates. */
function image() {
  const [left, top, width, height] = data.region;
  const centre = [0, 0];
  let zoom = 1;
  const step = () => Math.max(width / canvas.clientWidth, height / canvas.clientHeight) / zoom;  // of a CSS pixel
  return {
    sides: 1,
    keys: "Drag or use the arrow keys to move, wheel, two fingers, + or - to zoom, 0 for the whole picture.",
    reset() {
      centre[0] = left + width / 2;
      centre[1] = top + height / 2;
      zoom = 1;
    },
    drag(dx, dy) {
      centre[0] -= dx * step();
      centre[1] -= dy * step();
    },
    zoom(factor, x, y) {  // (x, y) stays where it is, in CSS pixels from the middle
      const before = step();
      zoom = Math.min(Math.max(zoom * factor, 0.25), 2000);  // single precision ends there
      centre[0] += x * (before - step());
      centre[1] += y * (before - step());
    },
    values(w, h, side, u) {
      const across = step() * canvas.clientWidth, down = step() * canvas.clientHeight;
      u.set([w, h, side, 0, centre[0] - across / 2, centre[1] - down / 2, across / w, down / h, ...data.region]);
      u.set([controls.samples?.valueAsNumber ?? 0, controls.white?.valueAsNumber ?? 1], 12);
      u[3] = controls.shown?.selectedIndex ?? 0;
      u.set(ground(), 28);
    },
    says: () => (zoom === 1 ? "" : `× ${zoom.toPrecision(3)}`),
  };
}

/** The direction at an azimuth and an elevation in degrees; z is up. */
function towards(azimuth, elevation) {
  const a = azimuth * Math.PI / 180, e = elevation * Math.PI / 180;
  return [Math.cos(a) * Math.cos(e), Math.sin(a) * Math.cos(e), Math.sin(e)];
}

/** A signed distance, traced from a camera that goes around the middle of a box. */
function surface() {
  const box = data.region, low = box.slice(0, 3), high = box.slice(3);
  const middle = low.map((v, i) => (v + high[i]) / 2), size = Math.max(...high.map((v, i) => v - low[i]));
  const order = {x: [1, 2, 0], y: [2, 0, 1], z: [0, 1, 2]}[data.up];  // coordinates that are right, back and up
  const place = (v) => { const p = []; order.forEach((to, i) => { p[to] = v[i]; }); return p; };
  const DISTANCE = 2.4, ANGLE = 0.27;  // in sizes of the box; the tangent of half the shorter field of view
  let azimuth, elevation, zoom;
  return {
    sides: 2,
    keys: "Drag or use the arrow keys to turn, wheel, two fingers, + or - to zoom, 0 for the first view.",
    reset() {
      [azimuth, elevation] = data.angles;
      zoom = 1;
    },
    drag(dx, dy) {
      azimuth = (azimuth - 0.4 * dx) % 360;
      elevation = Math.min(Math.max(elevation + 0.4 * dy, -89), 89);
    },
    zoom(factor) {
      zoom = Math.min(Math.max(zoom * factor, 0.25), 50);
    },
    values(w, h, side, u) {
      const from = place(towards(azimuth, elevation)), eye = middle.map((v, i) => v + DISTANCE * size * from[i]);
      const right = place(towards(azimuth + 90, 0)), down = place(towards(azimuth, elevation - 90));
      u.set([w, h, side, controls.smooth?.checked ? 1 : 0, ...eye, size]);
      u.set([...from.map((v) => -v), 2 * ANGLE / Math.min(w, h) / zoom], 8);
      u.set([...right, 0, ...down, 0, ...low, 0, ...high, 0, ...ground(), 1], 12);
    },
    says: () => (zoom === 1 ? "" : `× ${zoom.toPrecision(3)}`),
  };
}

/** A material in front of a camera that stays where it is, under a point light that moves. */
function material() {
  const DISTANCE = 4, ANGLE = 0.3;  // of camera and light from the middle; the tangent of half the shorter field of view
  const SPEED = 0.04, SWING = 80;  // of the light: degrees per millisecond, and to both sides of the camera
  const [azimuth, elevation] = data.angles, out = towards(azimuth, elevation);
  const right = towards(azimuth + 90, 0), down = towards(azimuth, elevation - 90);
  let light, zoom, time = null, turn = 1;
  return {
    sides: 2,
    arrows: -1,
    keys: "Drag or use the arrow keys to move the light, wheel, two fingers, + or - to zoom, 0 for the first view.",
    reset() {
      light = [...data.light];
      zoom = 1;
    },
    drag(dx, dy) {
      light = [(light[0] + 0.4 * dx) % 360, Math.min(Math.max(light[1] - 0.4 * dy, -90), 90)];
    },
    zoom(factor) {
      zoom = Math.min(Math.max(zoom * factor, 0.25), 50);
    },
    /** Does the light move by itself? Moves it as far as it has come since the last call. */
    moves() {
      const now = performance.now(), passed = Math.min(now - (time ?? now), 200);
      time = controls.moving.checked ? now : null;
      if (time === null) return false;
      const side = (((light[0] - azimuth + 180) % 360) + 360) % 360 - 180;
      if (Math.abs(side) > SWING) turn = -Math.sign(side);
      light[0] = (light[0] + turn * SPEED * passed) % 360;
      return true;
    },
    values(w, h, side, u) {
      u.set([w, h, side, controls.shape.selectedIndex, ...out.map((v) => DISTANCE * v), 0]);
      u.set([...out.map((v) => -v), 2 * ANGLE / Math.min(w, h) / zoom, ...right, 0, ...down, 0], 8);
      u.set([...towards(...light).map((v) => DISTANCE * v), controls.intensity.valueAsNumber], 20);
      u.set(ground(), 28);
    },
    says: () => `light ${light.map((v) => v.toFixed(0)).join("°, ")}°`,
  };
}

/** The colour of the page behind the picture, in [0, 1]. */
function ground() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return dark ? [0x15 / 255, 0x18 / 255, 0x1a / 255] : [1, 1, 1];
}

// ---- Controls ----------------------------------------------------------------------------------------------

const controls = {};

function make(kind, properties = {}, ...children) {
  const element = Object.assign(document.createElement(kind), properties);
  element.append(...children);
  return element;
}

/** A slider with its number beside it. */
function slider(text, value, min, max, step) {
  const input = make("input", {type: "range", min, max, step, value});
  const number = make("output", {value: String(input.valueAsNumber)});
  input.addEventListener("input", () => { number.value = String(input.valueAsNumber); });
  return [make("label", {}, text, input, number), input];
}

function build(view) {
  const form = document.getElementById("controls");
  form.addEventListener("submit", (event) => event.preventDefault());
  if (data.view === "image" && data.samples) {
    const names = ["Field", "Mean over masks", "Standard deviation"];
    controls.shown = make("select", {}, ...names.map((name) => make("option", {}, name)));
    controls.shown.selectedIndex = data.shown;
    const [masks, samples] = slider("Masks", data.samples, 2, 256, 1);
    const [scale, white] = slider("Scale", data.white, data.white / 10, data.white * 4, data.white / 10);
    Object.assign(controls, {samples, white});
    scale.append(make("span", {className: "scale", title: "from 0 to the number beside it"}));
    form.append(make("label", {}, "Show", controls.shown), masks, scale);
    const fit = () => { masks.hidden = controls.shown.selectedIndex < 1; scale.hidden = controls.shown.selectedIndex < 2; };
    controls.shown.addEventListener("input", fit);
    fit();
  }
  if (data.view === "surface") {
    controls.smooth = make("input", {type: "checkbox", checked: data.smooth});
    form.append(make("label", {}, controls.smooth, "Smooth normals"));
  }
  if (data.view === "material") {
    controls.shape = make("select", {}, ...["Sphere", "Square"].map((name) => make("option", {}, name)));
    controls.shape.selectedIndex = data.shape;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    controls.moving = make("input", {type: "checkbox", checked: data.moving && !still});
    const [label, intensity] = slider("Light", data.intensity, data.intensity / 10, data.intensity * 4, data.intensity / 10);
    controls.intensity = intensity;
    form.append(make("label", {}, "On a", controls.shape), label, make("label", {}, controls.moving, "Moves"));
  }
  form.append(make("button", {type: "button", textContent: "Reset", onclick: () => { view.reset(); changed(); }}));
  form.addEventListener("input", changed);
}

/** Mouse, fingers, wheel and keys. */
function listen(view) {
  const fingers = new Map();
  const middle = () => canvas.getBoundingClientRect();
  const zoomAt = (factor, x, y) => {
    const box = middle();
    view.zoom(factor, x - box.left - box.width / 2, y - box.top - box.height / 2);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
  }
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const other = [...fingers.values()].find((f) => f.pointerId !== event.pointerId);
    const share = other ? 0.5 : 1;  // of two fingers, the middle moves half as far
    view.drag(share * (event.clientX - before.clientX), share * (event.clientY - before.clientY));
    if (other) {
      const distance = (f) => Math.hypot(f.clientX - other.clientX, f.clientY - other.clientY) || 1;
      zoomAt(distance(event) / distance(before), (event.clientX + other.clientX) / 2, (event.clientY + other.clientY) / 2);
    }
    fingers.set(event.pointerId, event);
    changed();
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    zoomAt(Math.exp(-0.002 * lines * event.deltaY), event.clientX, event.clientY);
    changed();
  }, {passive: false});
  canvas.addEventListener("keydown", (event) => {
    const moves = {ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40]};
    const zooms = {"+": 1.25, "=": 1.25, "-": 0.8};
    if (moves[event.key]) view.drag(...moves[event.key].map((v) => (view.arrows ?? 1) * v));
    else if (zooms[event.key]) view.zoom(zooms[event.key], 0, 0);
    else if (event.key === "0") view.reset();
    else return;
    event.preventDefault();
    changed();
  });
}

// ---- Pictures: a quick one when something has changed, and then the best one ---------------------------------

let version = 0, wake = () => {};

function changed() {
  version += 1;
  document.documentElement.dataset.state = "drawing";
  wake();
}

function fail(text) {
  const message = document.getElementById("message");
  message.textContent = text;
  message.hidden = false;
  canvas.hidden = true;
  document.documentElement.dataset.state = "failed";
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));

/** Draws until the device is gone, and then fails. */
async function run(device, view) {
  const time = document.getElementById("time"), u = new Float32Array(NUMBERS);
  let cost = 1e-3;  // milliseconds of a ray

  /** Draw one of `side` x `side` rays in pixels `reduction` times as wide as the screen's; true if nothing has changed. */
  async function picture(reduction, side) {
    const drawn = version, density = Math.min(devicePixelRatio, 2) / reduction;
    const width = Math.max(1, Math.round(canvas.clientWidth * density));
    const height = Math.max(1, Math.round(canvas.clientHeight * density));
    view.values(width, height, side, u);
    let total = 0;
    for (let top = 0; top < height;) {
      const rays = width * side * side * masks();
      const rows = Math.min(height - top, Math.max(1, Math.floor(BAND / (cost * rays))));
      const start = performance.now();
      await Promise.race([device.draw(width, height, top, rows, u), device.gone]);
      const passed = performance.now() - start;
      cost = Math.max(passed / (rows * rays), 1e-9);
      total += passed;
      top += rows;
      if (top < height) await frame();
      if (drawn !== version && reduction === 1) return false;
    }
    device.show();
    const shown = [view.says(), `${total.toFixed(total < 10 ? 2 : 0)} ms`, `${width} × ${height}`, device.name];
    time.textContent = shown.filter(Boolean).join(" · ");
    return drawn === version;
  }

  const masks = () => (controls.shown?.selectedIndex ? controls.samples.valueAsNumber : 1);
  for (let done = -1; ;) {
    const wanted = version;
    if (done === wanted) {
      document.documentElement.dataset.state = "done";
      await Promise.race([new Promise((resolve) => { wake = resolve; }), device.gone]);
      continue;
    }
    const pixels = canvas.clientWidth * canvas.clientHeight * Math.min(devicePixelRatio, 2) ** 2;
    const reduction = [1, 2, 4, 8].find((r) => (cost * pixels * masks()) / r ** 2 < QUICK) ?? 16;
    let best = (await picture(reduction, 1)) && reduction === 1 && view.sides === 1;
    await frame();
    if (view.moves?.()) {
      changed();
      continue;
    }
    if (!best && wanted === version) {
      await pause(120);
      best = wanted === version && (await picture(1, view.sides));
    }
    if (best) done = wanted;
  }
}

/** A canvas that no interface has yet, in the place of the one before. */
function renew() {
  const fresh = canvas.cloneNode(), focused = document.activeElement === canvas;
  canvas.replaceWith(fresh);
  canvas = fresh;
  if (focused) canvas.focus();
}

/** Draws by the first graphics interface that works, and goes on by the next where one ends. */
async function start() {
  document.title = data.title;
  document.getElementById("title").textContent = data.title;
  canvas.setAttribute("aria-label", data.title);
  const facts = document.getElementById("facts");
  for (const [name, value] of data.facts) facts.append(make("dt", {}, name), make("dd", {}, value));
  const view = {image, surface, material}[data.view]();
  document.getElementById("keys").textContent = view.keys;
  view.reset();
  const text = atob(data.weights), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  const only = location.hash.slice(1), failures = [], sizes = new ResizeObserver(changed);
  let ran = false;
  for (const [name, engine] of [["webgpu", webgpu], ["webgl2", webgl2]]) {
    if (["webgpu", "webgl2"].includes(only) && only !== name) continue;
    try {
      if (failures.length) renew();
      const device = await engine(new Uint32Array(bytes.buffer));
      if (!ran) build(view);
      ran = true;
      listen(view);
      sizes.observe(canvas);
      changed();
      await run(device, view);
    } catch (error) {
      sizes.disconnect();
      failures.push(`${name}: ${error.message}`);
    }
  }
  const lost = "The graphics device was lost; load the page again.";
  throw new Error(`${ran ? lost : "This browser cannot draw the field: it needs WebGPU, or WebGL 2."} (${failures.join("; ")})`);
}

start().catch((error) => fail(error.message));
