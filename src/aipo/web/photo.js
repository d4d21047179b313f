// The page for photographs. Every request carries the file, and its answer all there is to show and to save; so
// nothing is kept on the server, and closing the connection is how a restoration is stopped.
import { Stage } from "./stage.js";

const find = (name) => document.querySelector(name);
const form = find("#wish"), outcome = find("#outcome"), text = find("#status .text"), bar = find("progress");
const tab = Array.from(crypto.getRandomValues(new Uint8Array(12)), (n) => n.toString(36)).join("");
const stage = new Stage(find("#stage"), update);
let file = null, info = null, result = null, running = null;

// --- the server

// The messages of an answer, each with the bytes that belong to it.
async function* ask(action, header, parts, signal) {
  const body = new Blob([JSON.stringify(header) + "\n", ...parts]);
  const answer = await fetch(`photo/${action}`, { method: "POST", body, signal });
  if (!answer.ok) throw new Error((await answer.json()).error);
  const reader = answer.body.getReader();
  let chunks = [], length = 0;
  const more = async () => {
    const { done, value } = await reader.read();
    if (!done) {
      chunks.push(value);
      length += value.length;
    }
    return !done;
  };
  const take = (count) => {
    const whole = new Uint8Array(length);
    let at = 0;
    for (const chunk of chunks) {
      whole.set(chunk, at);
      at += chunk.length;
    }
    [chunks, length] = [[whole.subarray(count)], length - count];
    return whole.subarray(0, count);
  };
  const line = () => {
    let at = 0;
    for (const chunk of chunks) {
      const end = chunk.indexOf(10);
      if (end >= 0) return at + end;
      at += chunk.length;
    }
    return -1;
  };
  for (;;) {
    while (line() < 0) if (!(await more())) return;
    const message = JSON.parse(new TextDecoder().decode(take(line() + 1)));
    while (length < message.bytes)
      if (!(await more())) throw new Error("The connection broke; try again.");
    yield [message, new Blob([take(message.bytes)])];
  }
}

async function one(action, header, parts) {
  for await (const [message, content] of ask(action, header, parts)) {
    if (message.status === "failed") throw new Error(message.text);
    return [message, content];
  }
  throw new Error("The server gave no answer; try again.");
}

const REFUSED = "The picture did not reach the server; try again.";
const reason = (error) => (error instanceof TypeError ? REFUSED : error.message);

// --- a file

async function open(chosen) {
  if (!chosen) return;
  running?.abort();
  running = null;
  say("busy", "Opening the picture …");
  try {
    const [message, shown] = await one("look", {}, [chosen]);
    const picture = await createImageBitmap(shown);
    [file, info] = [chosen, message];
    forget();
    stage.open(picture);
    about([`${file.name}: ${info.text}.`, ...info.notes].join(" "));
    say("ready", "Say what is wrong with it, then press Restore.");
    find("#tools").hidden = false;
  } catch (error) {
    about(`Not accepted: ${reason(error)}`, true);
    say(file ? "ready" : "empty", file ? "The picture before is still here." : "Choose a photograph to begin.");
  }
  update();
}

function about(words, refused = false) {
  find("#about").textContent = words;
  find("#about").classList.toggle("refused", refused);
}

// --- a restoration

const number = (name) => Number(find(`#${name}`).value);

function options() {
  const task = form.elements.task.value;
  return {
    task,
    sigma: task === "denoise" && !find("#automatic").checked ? number("sigma") : null,
    factor: task === "superres" ? number("factor") : null,
    blur: task === "deblur" && find("#kind").value === "blur" ? number("blur") : null,
    motion: task === "deblur" && find("#kind").value === "motion" ? `${number("length")},${number("angle")}` : null,
    pattern: task === "demosaic" ? find("#pattern").value : null,
    anyway: task === "inpaint" && find("#anyway").checked ? true : null,
  };
}

function forget() {
  result = null;
  find("#result").hidden = find("#compare").hidden = true;
  stage.reset();
}

async function restore() {
  const wish = options(), mine = (running = new AbortController());
  const header = { tab, options: wish, look: stage.look, strokes: wish.task === "inpaint" ? stage.painted : [] };
  forget();
  stage.reset(wish.factor ?? 1);
  stage.share = 0;
  stage.paints = false;
  const times = { begun: performance.now(), shared: null };
  say("busy", "Sending the picture …");
  update();
  try {
    for await (const [message, content] of ask("restore", header, [file], mine.signal)) await hear(message, content, times, wish);
  } catch (error) {
    if (running === mine) say(mine.signal.aborted ? "stopped" : "failed", mine.signal.aborted
      ? "Stopped by you. There is no file: the picture is not finished." : reason(error));
  }
  if (running === mine) running = null;
  if (!result && wish.task === "inpaint") stage.reset(); // back to painting
  update();
  stage.draw();
}

async function hear(message, content, times, wish) {
  if (message.patch) {
    stage.add(await createImageBitmap(content), message.patch);
    if (message.first) {
      outcome.dataset.first = ((performance.now() - times.begun) / 1000).toFixed(2);
      times.look = " The frame in the picture shows a first look.";
      text.textContent = message.text ?? text.textContent;
    }
    return;
  }
  if (message.status === "running") {
    // The time that is left is known once some of the work is done.
    if (message.share > 0) times.shared ??= [performance.now(), message.share];
    say("busy", message.text + left(message.share, times.shared) + (message.share > 0 ? "" : times.look ?? ""), message.share);
  } else if (message.status === "waiting") say("busy", message.text);
  else if (message.status === "done") finish(message, content, times, wish);
  else {
    say(message.status, message.text + (message.anyway ? " Tick “Fill large holes too” to do it." : ""));
    if (message.anyway) find("#anyway").focus();
  }
}

function left(share, begun) {
  if (!begun || share <= begun[1] || share >= 1) return "";
  const seconds = ((performance.now() - begun[0]) / 1000 / (share - begun[1])) * (1 - share);
  if (performance.now() - begun[0] < 1500) return "";
  return seconds < 90 ? ` about ${Math.max(1, Math.round(seconds))} s left` : ` about ${Math.round(seconds / 60)} min left`;
}

function finish(message, content, times, wish) {
  const seconds = (performance.now() - times.begun) / 1000;
  result = { blob: new Blob([content], { type: message.result.type }), ...message.result, task: wish.task };
  say("done", `${message.text.replace(/\.$/, "")} in ${seconds.toFixed(seconds < 10 ? 1 : 0)} s.`);
  const items = message.facts.map((fact) => Object.assign(document.createElement("li"), { textContent: fact }));
  find("#facts").replaceChildren(...items);
  // A mixture makes sense where both pictures show the same.
  find("#mixing").hidden = !["denoise", "deblur"].includes(wish.task);
  find("#strength").value = 100;
  stage.share = 0.5;
  stage.draw();
  find("#result").hidden = find("#compare").hidden = false;
}

function say(status, words, share = null) {
  outcome.dataset.status = status;
  text.textContent = words;
  bar.hidden = status !== "busy";
  if (share) bar.value = share;
  else bar.removeAttribute("value");
}

async function download() {
  const button = find("#download"), strength = Number(find("#strength").value) / 100;
  button.disabled = true;
  try {
    const mixed = strength < 1 && !find("#mixing").hidden;
    const [, content] = mixed ? await one("blend", { first: file.size, share: strength }, [file, result.blob]) : [];
    const stem = file.name.replace(/\.[^.]*$/, "");
    const given = /\.(jpe?g|tiff?)$/i.exec(file.name)?.[0];
    const same = given && { jpg: "jpeg", jpeg: "jpeg", tif: "tiff", tiff: "tiff" }[given.slice(1).toLowerCase()] === result.type.slice(6);
    save(`${stem}.restored${same ? given : result.ending}`, content ? new Blob([content], { type: result.type }) : result.blob);
  } catch (error) {
    say("failed", reason(error));
  }
  button.disabled = false;
}

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// --- the controls

// Called after every frame too: the stage may have changed.
function update() {
  const task = form.elements.task.value, busy = running !== null;
  form.dataset.task = task;
  stage.paints = task === "inpaint" && !busy && !result;
  stage.outlines = !result;
  find("#stage").classList.toggle("paints", stage.brushes);
  find("#level").hidden = find("#automatic").checked;
  for (const label of document.querySelectorAll("[data-kind]")) label.hidden = label.dataset.kind !== find("#kind").value;
  const say_ = (input, words) => (find(input).closest("label").querySelector("output").textContent = words);
  say_("#sigma", `${number("sigma").toFixed(3)} (${Math.round(255 * number("sigma"))} of 255)`);
  say_("#blur", `${number("blur").toFixed(1)} pixels`);
  say_("#length", `${number("length")} pixels`);
  say_("#angle", `${number("angle")}°`);
  say_("#strength", `${number("strength")}%`);
  find("#brush").value = Math.round(2 * stage.radius);
  say_("#brush", `${Math.round(2 * stage.radius)} pixels`);
  find("#erase").setAttribute("aria-pressed", stage.erases);
  find("#hand").setAttribute("aria-pressed", stage.hand);
  find("#restore").disabled = !file || busy;
  find("#restore").hidden = busy;
  find("#stop").hidden = !busy;
  if (stage.view) find("#zoom").textContent = `${Math.round(100 * stage.view.scale)}%`;
  find("#wipe").value = Math.round(1000 * stage.share);
  const compares = stage.patches.length > 0 && !stage.paints;
  find(".tag.before").hidden = !compares || stage.share < 0.12;
  find(".tag.after").hidden = !compares || stage.share > 0.88;
  find(".tag.after").textContent = !result ? "so far" : stage.strength < 1 ? "mixture" : "restored";
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!file || running) return;
  restore();
  if (outcome.getBoundingClientRect().top > window.innerHeight / 2) outcome.scrollIntoView({ behavior: "smooth" });
});
// Another wish: what was restored is no longer what is asked for, and there may be something to paint.
form.addEventListener("input", (event) => {
  if (event.target.id === "brush") stage.radius = number("brush") / 2;
  else if (event.target.name === "task" && !running && file) {
    forget();
    say("ready", "Say what is wrong with it, then press Restore.");
  }
  stage.draw();
  update();
});
find("#file").addEventListener("change", (event) => {
  open(event.target.files[0]);
  event.target.value = ""; // so that the same file can be chosen again
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  open(event.dataTransfer.files[0]);
});
find("#sample").addEventListener("click", async () => {
  const answer = await fetch("photo/sample.png");
  open(new File([await answer.blob()], "coffee.png"));
});
const press = (name, work) => find(name).addEventListener("click", () => (work(), stage.draw(), update()));
press("#stop", () => running?.abort());
press("#in", () => stage.zoom(stage.view.scale * 1.5));
press("#out", () => stage.zoom(stage.view.scale / 1.5));
press("#fit", () => stage.fit());
press("#full", () => stage.full());
press("#erase", () => (stage.erases = !stage.erases));
press("#hand", () => (stage.hand = !stage.hand));
press("#undo", () => repaint(() => stage.undo()));
press("#clear", () => repaint(() => stage.clear()));
find("#wipe").addEventListener("input", (event) => ((stage.share = event.target.value / 1000), stage.draw()));
find("#strength").addEventListener("input", (event) => ((stage.strength = event.target.value / 100), stage.draw(), update()));
find("#download").addEventListener("click", download);
update();

// After a restoration one may go on painting.
function repaint(work) {
  if (running) return;
  if (result) forget();
  work();
}
