// Shows the messages of aipo.web.session. Once a path is there, everything below happens in the browser: an image
// between two values of lambda is a mixture of theirs, so the slider needs no server.
const find = (name) => element.querySelector(name);
const root = find(".viewer"), slider = find(".slider"), wipe = find(".wipe"), chart = find(".chart");
let value = null, frames = [], still = {}, view = "restored", latest = 0;

const decode = (url) =>
  new Promise((done) => {
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [image.width, image.height];
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      done(context.getImageData(0, 0, image.width, image.height));
    };
    image.src = url;
  });

function paint(canvas, pixels) {
  if (!pixels) return;
  [canvas.width, canvas.height] = [pixels.width, pixels.height];
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

const ended = () => value && value.chosen != null;
const span = () => value.range.map(Math.log);
const wanted = () => {
  const [low, high] = span();
  return Math.exp(low + ((high - low) * slider.value) / 1000);
};
// The chosen lambda lies between two ticks of the slider; at the nearest one it is meant exactly.
const position = (lam) => {
  const [low, high] = span();
  return high > low ? Math.round((1000 * (Math.log(lam) - low)) / (high - low)) : 0;
};
const isChosen = () => Number(slider.value) === position(value.frames[value.chosen].lam);

function between(lam) {
  let upper = value.frames.findIndex((frame) => frame.lam >= lam);
  if (upper < 0) upper = value.frames.length - 1;
  const lower = Math.max(0, upper - 1);
  const [a, b] = [value.frames[lower].lam, value.frames[upper].lam].map(Math.log);
  return [lower, upper, b > a ? Math.min(1, Math.max(0, (Math.log(lam) - a) / (b - a))) : 1];
}

function shown() {
  const lam = isChosen() ? value.frames[value.chosen].lam : wanted();
  const [lower, upper, share] = between(lam);
  const mix = (name) => {
    const [a, b] = [value.frames[lower][name], value.frames[upper][name]];
    return a == null || b == null ? null : a + (b - a) * share;
  };
  const [p, q] = [frames[lower], frames[upper]];
  const pixels = new ImageData(q.width, q.height);
  for (let i = 0; i < pixels.data.length; i++)
    pixels.data[i] = Math.round(p.data[i] + (q.data[i] - p.data[i]) * share);
  return { lam, pixels, chi2: mix("chi2"), psnr: mix("psnr"), exact: share === 1 || share === 0 };
}

const number = (x) => (x >= 1 ? x.toFixed(2) : x.toPrecision(2));

function readout(lam, chi2, psnr, note) {
  find(".lam").textContent = lam == null ? "λ 0" : `λ ${number(lam)}${note}`;
  const target = value.target == null ? "" : `, expected ${value.target.toFixed(2)}`;
  find(".chi2").textContent = `left over: chi² ${chi2.toFixed(2)}${target}`;
  find(".psnr").textContent = psnr == null ? "" : `PSNR ${psnr.toFixed(1)} dB`;
}

function advise(lam) {
  const ratio = lam / value.frames[value.chosen].lam;
  find(".advice").textContent =
    !value.reached && ratio > 0.99
      ? "Not finished: it was stopped before what is left over looked like noise."
      : ratio < 0.75
      ? "Too little: the picture repeats what was measured, noise and all."
      : ratio > 1.35
        ? "Too much: the picture is smoother than what was measured, and its own detail is lost."
        : "Balanced: what is left over is about as large as the noise should be.";
}

function draw(points, mark) {
  const names = [...points.map((p) => p.chi2), value.target ?? 0].filter((v) => v > 0);
  const floor = Math.max(1e-3, Math.min(...names) / 1.25), roof = Math.max(...names) * 1.25;
  const [low, high] = span();
  const x = (lam) => 8 + (384 * (Math.log(lam) - low)) / (high - low || 1);
  const y = (v) => 118 - (108 * Math.log(Math.max(v, floor) / floor)) / Math.log(roof / floor);
  const line = points.map((p) => `${x(p.lam).toFixed(1)},${y(p.chi2).toFixed(1)}`).join(" ");
  const dots = points.map((p) => `<circle cx="${x(p.lam)}" cy="${y(p.chi2)}" r="2.5"/>`).join("");
  const level = y(value.target), best = ended() ? value.frames[value.chosen] : null;
  chart.innerHTML =
    `<line class="target" x1="8" x2="392" y1="${level}" y2="${level}"/>` +
    `<text class="label" x="392" y="${level < 110 ? level + 13 : level - 5}" text-anchor="end">expected from noise</text>` +
    `<polyline class="curve" points="${line}"/><g class="curve">${dots}</g>` +
    (best ? `<line class="chosen" x1="${x(best.lam)}" x2="${x(best.lam)}" y1="6" y2="124"/>` : "") +
    (best ? `<circle class="chosen" cx="${x(best.lam)}" cy="${y(best.chi2)}" r="5"/>` : "") +
    (mark ? `<circle class="now" cx="${x(mark.lam)}" cy="${y(mark.chi2)}" r="5.5"/>` : "");
}

function render() {
  if (!ended()) return;
  const now = shown();
  paint(find(".after"), { restored: now.pixels, doubt: still.doubt, truth: still.truth }[view]);
  find(".tag.right").textContent = { restored: "restored", doubt: "doubt", truth: "original" }[view];
  readout(now.lam, now.chi2, now.psnr, isChosen() ? (value.reached ? ", chosen" : ", the last one") : "");
  advise(now.lam);
  draw(value.frames, now);
  find(".back").hidden = isChosen();
}

function cut() {
  const share = wipe.value / 10;
  find(".before").style.clipPath = `inset(0 ${100 - share}% 0 0)`;
  find(".divider").style.left = `${share}%`;
  find(".tag.left").style.opacity = share > 12 ? 1 : 0;
  find(".tag.right").style.opacity = share < 88 ? 1 : 0;
}

function choose(name) {
  view = name;
  element.querySelectorAll("[data-view]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.view === name));
  render();
}

function list(facts) {
  find(".facts").replaceChildren(
    ...facts.map((fact) => {
      const item = document.createElement("li");
      item.className = fact.good ? "good" : "doubtful";
      const [title, figure] = [document.createElement("b"), document.createElement("span")];
      title.textContent = fact.title;
      figure.textContent = fact.value;
      item.append(title, figure, document.createTextNode(fact.text));
      return item;
    }),
  );
}

async function show() {
  const mine = ++latest;
  const message = props.value;
  if (!message) return;
  const ends = message.chosen != null;
  const [before, live, truth, doubt, ...path] = await Promise.all(
    [message.before, message.live?.image, message.truth, message.doubt?.image]
      .concat(ends ? message.frames.map((frame) => frame.image) : [])
      .map((url) => url && decode(url)),
  );
  if (mine !== latest) return; // a newer message has overtaken this one
  value = message;
  frames = path;
  still = { before, truth, doubt };
  root.dataset.status = value.status;
  root.dataset.frames = value.frames?.length ?? 0;
  find(".status .text").textContent = value.text;
  const busy = value.status === "running" || value.status === "waiting";
  find(".status .bar").hidden = !busy;
  const spent = value.live ? value.live.evals / value.budget : 0;
  find(".status .bar span").style.width = `${Math.round(100 * spent)}%`;
  find(".welcome").hidden = Boolean(value.before);
  find(".result").hidden = !value.before;
  find(".weight").hidden = !value.range && !value.live;
  for (const name of [".views", ".sure", ".downloads"]) find(name).hidden = !ends;
  slider.disabled = !ends;
  // On a phone the pictures are below the controls.
  if (value.status === "waiting" && root.getBoundingClientRect().top > window.innerHeight / 2)
    root.scrollIntoView({ behavior: "smooth" });
  if (before) paint(find(".before"), before);
  if (live && !ends) {
    view = "restored";
    paint(find(".after"), live);
    find(".tag.right").textContent = "so far";
    readout(value.live.lam, value.live.chi2, value.live.psnr, "");
    find(".advice").textContent = value.frames.length
      ? "Each point is a solved λ. The prior smooths away noise first, then detail."
      : "As long as the prior hardly counts, the picture only explains what was measured.";
    find(".back").hidden = true;
    if (value.range) {
      slider.value = position(value.live.lam);
      draw(value.frames, value.live);
    } else chart.replaceChildren();
  }
  if (ends) {
    slider.value = position(value.frames[value.chosen].lam);
    find("[data-view=truth]").hidden = !truth;
    list(value.facts);
    const levels = Math.max(1, Math.round(255 * value.doubt.peak));
    find(".doubt-note").textContent =
      `“Doubt” shows where the picture changes between half and twice the chosen λ, by at most ${levels} levels of ` +
      "255: there the prior speaks, not the measurement. It is not a posterior: a pixel can be steady and still wrong.";
    choose("restored");
  }
  // The comparison opens by itself once there is something to compare.
  if (before) wipe.value = ends ? 350 : 0;
  find(".divider").hidden = !ends;
  cut();
}

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

find(".png").addEventListener("click", () => {
  const canvas = document.createElement("canvas");
  paint(canvas, shown().pixels);
  canvas.toBlob((blob) => save("restored.png", blob), "image/png");
});
find(".json").addEventListener("click", () => {
  const { lam, chi2, psnr, exact } = shown();
  // Says whether the image was solved, or lies between two solved ones.
  const picture = { lam, chi2, psnr, chosen: isChosen(), interpolated: !exact };
  const text = JSON.stringify({ ...value.record, downloaded_picture: picture }, null, 2) + "\n";
  save("restored.json", new Blob([text], { type: "application/json" }));
});
slider.addEventListener("input", () => {
  if (view !== "restored") choose("restored");
  else render();
});
wipe.addEventListener("input", cut);
find(".back").addEventListener("click", () => {
  slider.value = position(value.frames[value.chosen].lam);
  render();
});
element.querySelectorAll("[data-view]").forEach((b) => b.addEventListener("click", () => choose(b.dataset.view)));
watch("value", show);
cut();
show();
