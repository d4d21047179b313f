// The image to be restored, and a brush for its missing parts.
// value: { image, mask, paint, note }; mask has one character for each pixel, row by row: 1 is kept, 0 is missing.
// A value without a mask leaves the mask alone: what is painted while the server computes must not be lost.
const find = (name) => element.querySelector(name);
const picture = find(".picture"), overlay = find(".mask"), tools = find(".tools");
let cells = [], width = 0, height = 0, erase = false, last = null;

function show() {
  const value = props.value;
  if (!value) return;
  if (value.mask == null) commit();
  else cells = Array.from(value.mask, Number);
  const image = new Image();
  image.onload = () => {
    width = picture.width = overlay.width = image.width;
    height = picture.height = overlay.height = image.height;
    picture.getContext("2d").drawImage(image, 0, 0);
    draw();
  };
  image.src = value.image;
  tools.hidden = !value.paint;
  overlay.style.display = value.paint ? "" : "none";
  find(".note").textContent = value.note;
}

function draw() {
  const pixels = new ImageData(width, height);
  cells.forEach((kept, i) => {
    // A checkered pattern, so that it cannot be taken for part of the image.
    if (!kept) pixels.data.set((i + Math.floor(i / width)) % 2 ? [230, 82, 40, 255] : [247, 130, 80, 255], 4 * i);
  });
  overlay.getContext("2d").putImageData(pixels, 0, 0);
}

function at(event) {
  const box = overlay.getBoundingClientRect();
  return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
}

function dab([x, y]) {
  const radius = Number(find(".size").value) / 2 + 0.5;
  for (let row = Math.max(0, Math.floor(y - radius)); row <= Math.min(height - 1, y + radius); row++)
    for (let column = Math.max(0, Math.floor(x - radius)); column <= Math.min(width - 1, x + radius); column++)
      if (Math.hypot(column + 0.5 - x, row + 0.5 - y) <= radius) cells[row * width + column] = erase ? 1 : 0;
}

function stroke(event) {
  const to = at(event), from = last || to;
  const steps = Math.max(1, Math.ceil(Math.hypot(to[0] - from[0], to[1] - from[1])));
  for (let i = 0; i <= steps; i++) dab([0, 1].map((k) => from[k] + ((to[k] - from[k]) * i) / steps));
  last = to;
  draw();
}

function commit() {
  props.value = { ...props.value, mask: cells.join("") };
}

overlay.addEventListener("pointerdown", (event) => {
  overlay.setPointerCapture(event.pointerId);
  event.preventDefault();
  last = null;
  stroke(event);
});
overlay.addEventListener("pointermove", (event) => event.buttons && stroke(event));
overlay.addEventListener("pointerup", commit);
overlay.addEventListener("pointercancel", commit);
find(".erase").addEventListener("click", (event) => {
  erase = !erase;
  event.currentTarget.setAttribute("aria-pressed", erase);
});
find(".clear").addEventListener("click", () => {
  cells = cells.map(() => 1);
  draw();
  commit();
});
watch("value", show);
show();
