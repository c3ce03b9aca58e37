"use strict";
/* The frame of every exported page: it loads the bundle, checks it against what the model computed, and lets it play.

   world.js holds what is played, play.js who plays it and calls Frame.run(bundle => player), once. A player has
     title             text
     pace              steps a second at normal speed
     compute(inputs)   outputs of one recorded case, {name: array}, from {name: typed array}
     checks            optional: {name: () => {ok, text}}, further checks
     start(), step()   begin anew; go on by one step
     draw(context, width, height, ink)   paint, in CSS pixels; ink is the colour of text
     status()          one line of text
     height            optional: height of the stage as a share of its width; 1 if absent */
const Frame = (() => {
  const ARRAYS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };
  // As in core/export/gate.py.
  const TOLERANCE = 1e-4;
  const AT_ONCE = 4; // cases; a browser waits at least 4 ms between two timers
  const $ = (id) => document.getElementById(id);

  async function read(name) {
    const answer = await fetch(name);
    if (!answer.ok) throw new Error(`${name}: HTTP ${answer.status}`);
    return answer.arrayBuffer();
  }

  /* {name: {shape, data, row(i)}} of a packed file; row(i) is entry i of the first dimension. */
  function unpack(file, buffer, index) {
    const found = {};
    for (const { name, dtype, shape, offset } of index) {
      const count = shape.reduce((product, size) => product * size, 1);
      const end = offset + count * ARRAYS[dtype].BYTES_PER_ELEMENT;
      if (end > buffer.byteLength) throw new Error(`${file} was cut short: ${buffer.byteLength} bytes, ${name} ends at ${end}; copy it once more`);
      const data = new ARRAYS[dtype](buffer, offset, count);
      const size = shape.length ? count / shape[0] : 1;
      found[name] = { shape, data, row: (i) => data.subarray(i * size, (i + 1) * size) };
    }
    return found;
  }

  async function load() {
    const manifest = JSON.parse(new TextDecoder().decode(await read("manifest.json")));
    const files = { "weights.bin": await read("weights.bin"), "golden.bin": await read("golden.bin") };
    return {
      manifest,
      files,
      page: manifest.page,
      weights: unpack("weights.bin", files["weights.bin"], manifest.weights),
      golden: unpack("golden.bin", files["golden.bin"], manifest.golden),
    };
  }

  /* Browsers give digests only to pages from https and from this machine. */
  async function digests({ manifest, files }) {
    if (!globalThis.crypto?.subtle) return { ok: true, text: "digests: not checked, the page did not come over https" };
    for (const [name, bytes] of Object.entries(files)) {
      const found = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
      const text = Array.from(found, (byte) => byte.toString(16).padStart(2, "0")).join("");
      if (text !== manifest.files[name].sha256) return { ok: false, text: `digests: ${name} is not the exported one` };
    }
    return { ok: true, text: "digests: the files are the exported ones" };
  }

  function best(values, from, to) {
    let place = from;
    for (let i = from + 1; i < to; i++) if (values[i] > values[place]) place = i;
    return place - from;
  }

  /* The model's own choices and scores, for every recorded case. A thousand of them take seconds, in which the page
     plays already: a few at a time, or it would stand still. */
  async function golden(bundle, compute) {
    const parts = { inputs: {}, outputs: {} };
    for (const [name, tensor] of Object.entries(bundle.golden)) {
      const [side, rest] = [name.slice(0, name.indexOf(".")), name.slice(name.indexOf(".") + 1)];
      parts[side][rest] = tensor;
    }
    const cases = Object.values(parts.inputs)[0].shape[0];
    let [choices, equal, difference] = [0, 0, 0];
    for (let i = 0; i < cases; i++) {
      if (i % AT_ONCE === 0) await new Promise((go) => setTimeout(go));
      const inputs = Object.fromEntries(Object.entries(parts.inputs).map(([name, tensor]) => [name, tensor.row(i)]));
      const found = compute(inputs);
      for (const [name, tensor] of Object.entries(parts.outputs)) {
        const [want, got, scores] = [tensor.row(i), found[name], tensor.data instanceof Float32Array];
        const width = scores ? tensor.shape[tensor.shape.length - 1] : 1;
        for (let at = 0; at < want.length; at += width) {
          choices += 1;
          equal += scores ? best(want, at, at + width) === best(got, at, at + width) : want[at] === got[at];
          for (let j = at; scores && j < at + width; j++) {
            if (want[j] !== got[j]) difference = Math.max(difference, Math.abs(want[j] - got[j]) / Math.max(1, Math.abs(want[j])));
          }
        }
      }
    }
    const ok = equal === choices && difference <= TOLERANCE;
    return { ok, text: `golden: ${equal} of ${choices} choices equal PyTorch's, largest difference ${difference.toExponential(1)}` };
  }

  function show(id, check) {
    const item = document.createElement("li");
    item.textContent = check.text;
    item.className = check.ok ? "" : "bad";
    item.dataset.check = id;
    item.dataset.ok = String(check.ok);
    $("checks").append(item);
  }

  function tell({ manifest }) {
    const rows = { step: manifest.step, ...manifest.metrics };
    for (const [name, value] of Object.entries(rows)) {
      if (typeof value !== "number") continue;
      const row = $("metrics").insertRow();
      row.insertCell().textContent = name;
      row.insertCell().textContent = Number.isInteger(value) ? String(value) : value.toPrecision(4);
    }
  }

  function play(player) {
    const stage = $("stage");
    const context = stage.getContext("2d");
    let [paused, due] = [false, 0];
    const paint = () => {
      const scale = globalThis.devicePixelRatio || 1;
      const width = stage.clientWidth;
      const height = Math.round(width * (player.height || 1));
      stage.width = width * scale;
      stage.height = height * scale;
      context.scale(scale, scale);
      player.draw(context, width, height, getComputedStyle(stage).color);
      $("status").textContent = player.status();
    };
    const turn = (now) => {
      const period = 1000 / (player.pace * 2 ** Number($("speed").value));
      // At most a dozen steps a frame: a tab that was hidden does not catch up.
      due = Math.max(due, now - 12 * period);
      for (; !paused && due <= now; due += period) player.step();
      paint();
      requestAnimationFrame(turn);
    };
    $("pause").onclick = () => {
      paused = !paused;
      $("pause").textContent = paused ? "Go on" : "Pause";
    };
    $("again").onclick = () => player.start();
    player.start();
    // index.html#150 begins 150 steps later.
    for (let left = Number(location.hash.slice(1)) || 0; left > 0; left--) player.step();
    requestAnimationFrame(turn);
  }

  async function run(make) {
    try {
      const bundle = await load();
      const player = make(bundle);
      $("title").textContent = document.title = player.title;
      tell(bundle);
      show("digests", await digests(bundle));
      for (const [name, check] of Object.entries(player.checks || {})) show(name, check());
      play(player);
      show("golden", await golden(bundle, player.compute));
    } catch (error) {
      const advice = location.protocol === "file:" ? "; open it from a web server: python3 -m http.server" : "";
      $("title").textContent = "This page cannot run";
      $("status").textContent = `${error.message}${advice}`;
      throw error;
    }
  }

  return { run };
})();
