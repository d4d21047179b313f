// The picture on the screen: before and after, zoom, and the brush. It knows nothing of the server.
// Coordinates: `world` pixels are those of the restoration; the picture before may be smaller by `factor`.
// What is painted is kept as strokes, in pixels of the picture before, so it is exact at any zoom and any size.
import { drawDivider, drawOutlines } from "./marks.js";

const MOST_ZOOM = 16, MOST_FIT = 3, STEP = 1.25, HANDLE = 24;

export class Stage {
  constructor(element, changed) {
    this.element = element;
    this.canvas = element.querySelector("canvas");
    this.changed = changed; // called when the zoom, the brush or the strokes have changed
    this.before = null;
    this.factor = 1;
    this.patches = [];
    this.outlines = false; // of the parts that are restored
    this.share = 0.5; // how much of the width shows the picture before
    this.strength = 1;
    this.strokes = [];
    this.paints = this.erases = this.hand = this.down = false;
    this.radius = 12;
    this.cursor = null; // of the brush, in pixels of the picture before
    this.pointers = new Map();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(element);
  }

  // --- what is shown

  open(before) {
    this.before = before;
    this.strokes = [];
    this.cursor = null;
    this.reset();
  }

  // Forget a restoration; the next one may have another size.
  reset(factor = 1) {
    this.patches = [];
    this.strength = 1;
    const same = factor === this.factor && this.view && this.before && this.shown === this.before;
    this.factor = factor;
    this.shown = this.before;
    if (same) this.draw();
    else this.fit();
  }

  add(bitmap, [x, y, width, height]) {
    this.patches.push({ bitmap, x, y, width, height });
    this.draw();
  }

  get size() {
    return [this.before.width * this.factor, this.before.height * this.factor];
  }

  resize() {
    const ratio = window.devicePixelRatio || 1, box = this.element.getBoundingClientRect();
    const all = this.view && this.view.fitted;
    [this.canvas.width, this.canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    if (all) this.fit();
    else this.draw();
  }

  fit() {
    if (!this.before) return;
    const [width, height] = this.size, { canvas } = this;
    const scale = Math.min(canvas.width / width, canvas.height / height, MOST_FIT);
    this.view = { scale, x: width / 2, y: height / 2, fitted: true };
    this.smallest = Math.min(scale, 1);
    this.draw();
  }

  // Zoom to a scale, with one place (canvas pixels) staying where it is.
  zoom(scale, [px, py] = [this.canvas.width / 2, this.canvas.height / 2]) {
    if (!this.before) return;
    const [wx, wy] = this.toWorld(px, py);
    const to = Math.min(MOST_ZOOM, Math.max(this.smallest, scale));
    this.view = {
      scale: to, x: wx - (px - this.canvas.width / 2) / to, y: wy - (py - this.canvas.height / 2) / to,
      fitted: false,
    };
    if (to === this.smallest && to < 1) this.fit();
    else this.hold();
  }

  full() {
    // One pixel of the picture is one pixel of the screen.
    this.zoom(1);
  }

  pan(dx, dy) {
    if (!this.before) return;
    this.view.x -= dx / this.view.scale;
    this.view.y -= dy / this.view.scale;
    this.hold();
  }

  // The picture must not leave the stage.
  hold() {
    const [width, height] = this.size, { view, canvas } = this;
    const clamp = (at, size, room) => {
      const half = room / view.scale / 2;
      return half >= size / 2 ? size / 2 : Math.min(size - half, Math.max(half, at));
    };
    view.x = clamp(view.x, width, canvas.width);
    view.y = clamp(view.y, height, canvas.height);
    this.draw();
  }

  toWorld(px, py) {
    const { view, canvas } = this;
    return [view.x + (px - canvas.width / 2) / view.scale, view.y + (py - canvas.height / 2) / view.scale];
  }

  // What the user looks at, as shares of the picture.
  get look() {
    const [width, height] = this.size;
    return [this.view.x / width, this.view.y / height];
  }

  draw() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = null;
      this.render();
      this.changed();
    });
  }

  render() {
    const { canvas, view } = this, context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!this.before) return;
    const s = view.scale, left = canvas.width / 2 - view.x * s, top = canvas.height / 2 - view.y * s;
    context.imageSmoothingEnabled = s < 2;
    context.imageSmoothingQuality = "high";
    context.setTransform(s, 0, 0, s, left, top);
    context.drawImage(this.before, 0, 0, ...this.size);
    if (this.patches.length) this.renderAfter(context);
    context.setTransform(1, 0, 0, 1, 0, 0);
    if (this.paints) this.renderMask(context, s * this.factor, left, top);
    if (this.patches.length && !this.paints && this.share > 0) drawDivider(context, this.edge);
  }

  // From where to where the picture is seen, in canvas pixels.
  get seen() {
    const width = this.size[0] * this.view.scale, left = this.canvas.width / 2 - this.view.x * this.view.scale;
    return [Math.max(0, left), Math.min(this.canvas.width, left + width)];
  }

  // Left of it is the picture before.
  get edge() {
    const [left, right] = this.seen;
    return left + this.share * (right - left);
  }

  renderAfter(context) {
    const edge = this.paints ? 0 : this.edge, transform = context.getTransform();
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.beginPath();
    context.rect(edge, 0, this.canvas.width - edge, this.canvas.height);
    context.clip();
    context.setTransform(transform);
    context.globalAlpha = this.strength;
    for (const p of this.patches) context.drawImage(p.bitmap, p.x, p.y, p.width, p.height);
    if (this.outlines) drawOutlines(context, this.patches, this.view.scale);
    context.restore();
  }

  // --- the brush

  renderMask(context, s, left, top) {
    const layer = (this.layer ??= document.createElement("canvas"));
    [layer.width, layer.height] = [this.canvas.width, this.canvas.height];
    const paint = layer.getContext("2d");
    paint.setTransform(s, 0, 0, s, left, top);
    paint.lineCap = paint.lineJoin = "round";
    paint.strokeStyle = "#e65228";
    for (const stroke of this.strokes) {
      paint.globalCompositeOperation = stroke.erase ? "destination-out" : "source-over";
      paint.lineWidth = 2 * stroke.radius;
      paint.beginPath();
      paint.moveTo(...stroke.points[0]);
      for (const point of stroke.points) paint.lineTo(...point);
      paint.stroke();
    }
    context.globalAlpha = 0.65;
    context.drawImage(layer, 0, 0);
    context.globalAlpha = 1;
    if (!this.cursor) return;
    const [x, y] = [left + this.cursor[0] * s, top + this.cursor[1] * s], radius = Math.max(2, this.radius * s);
    for (const [width, color] of [[3, "#000a"], [1.5, this.erases ? "#7fb0f5" : "#fff"]]) {
      context.lineWidth = width;
      context.strokeStyle = color;
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.stroke();
    }
  }

  begin(point) {
    this.strokes.push({ radius: this.radius, erase: this.erases, points: [point] });
    this.draw();
  }

  extend(point) {
    const { points } = this.strokes.at(-1), [x, y] = points.at(-1);
    // Closer points than a pixel, of the picture or of the screen, make no difference.
    if (Math.hypot(point[0] - x, point[1] - y) * Math.min(1, this.view.scale * this.factor) >= 1) points.push(point);
    this.draw();
  }

  undo() {
    this.down = false;
    this.strokes.pop();
    this.draw();
  }

  clear() {
    this.down = false;
    this.strokes = [];
    this.draw();
  }

  // As the server takes them: [radius, erase, x, y, x, y, ...].
  get painted() {
    const round = (value) => Math.round(10 * value) / 10;
    return this.strokes.map((s) => [round(s.radius), s.erase ? 1 : 0, ...s.points.flat().map(round)]);
  }

  // --- mouse, fingers and keys

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.release(event));
    canvas.addEventListener("wheel", (event) => {
      if (!this.before) return;
      event.preventDefault();
      this.zoom(this.view.scale * STEP ** (-event.deltaY / 100), this.at(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => { this.down = false; });
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect(), ratio = this.canvas.width / box.width;
    return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
  }

  onPicture(event) {
    return this.toWorld(...this.at(event)).map((value) => value / this.factor);
  }

  get brushes() {
    return this.paints && !this.hand;
  }

  press(event) {
    if (!this.before) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.at(event));
    if (this.pointers.size === 2) {
      if (this.action === "paint") this.undo(); // the first of two fingers meant to zoom
      this.action = "pinch";
    } else if (this.brushes && event.button === 0) {
      this.action = "paint";
      this.cursor = this.onPicture(event);
      this.begin(this.cursor);
    } else if (this.pointers.size === 1) {
      const near = Math.abs(this.at(event)[0] - this.edge) < HANDLE * (window.devicePixelRatio || 1);
      const divides = this.patches.length && !this.paints;
      this.action = divides && (near || this.view.fitted) ? "divide" : "pan";
    }
  }

  drag(event) {
    if (!this.before) return;
    const last = this.pointers.get(event.pointerId), now = this.at(event);
    if (this.brushes && event.pointerType === "mouse") {
      this.cursor = this.onPicture(event);
      this.draw();
    }
    if (!last) return;
    if (this.action === "pinch") this.pinch(event.pointerId, now);
    this.pointers.set(event.pointerId, now);
    if (this.action === "paint") this.extend(this.onPicture(event));
    if (this.action === "pan") this.pan(now[0] - last[0], now[1] - last[1]);
    if (this.action === "divide") {
      const [left, right] = this.seen;
      this.share = Math.min(1, Math.max(0, (now[0] - left) / (right - left)));
      this.draw();
    }
  }

  pinch(id, now) {
    const last = this.pointers.get(id), other = [...this.pointers].find(([key]) => key !== id)?.[1];
    if (!other) return;
    const far = (a) => Math.max(1, Math.hypot(a[0] - other[0], a[1] - other[1]));
    this.zoom((this.view.scale * far(now)) / far(last), other);
    this.pan((now[0] - last[0]) / 2, (now[1] - last[1]) / 2);
  }

  release(event) {
    this.pointers.delete(event.pointerId);
    if (!this.pointers.size) this.action = null;
    if (event.pointerType === "touch") this.cursor = null; // there is nothing where no finger is
    this.draw();
  }

  key(event) {
    if (!this.before) return;
    const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const undo = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z";
    if ((event.ctrlKey || event.metaKey || event.altKey) && !undo) return;
    if (undo) this.undo();
    else if (arrow && this.brushes) this.moveBrush(arrow, event.shiftKey);
    else if (arrow) this.pan(...arrow.map((d) => (-d * this.canvas.width) / 10));
    else if (event.key === " " && this.brushes) this.putDown();
    else if (event.key === "+" || event.key === "=") this.zoom(this.view.scale * STEP);
    else if (event.key === "-") this.zoom(this.view.scale / STEP);
    else if (event.key === "0") this.fit();
    else if (event.key === "1") this.full();
    else if (event.key === "e") this.erases = !this.erases;
    else if (event.key === "[" || event.key === "]") this.radius = Math.max(0.5, this.radius + (event.key === "[" ? -1 : 1));
    else return;
    event.preventDefault();
    this.draw();
  }

  // By half a brush, so that dabs overlap; with Shift by four.
  moveBrush([dx, dy], far) {
    const step = Math.max(1, this.radius / 2) * (far ? 8 : 1), { before } = this;
    const [x, y] = this.cursor ?? this.look.map((share, i) => share * (i ? before.height : before.width));
    const clamp = (value, size) => Math.min(size, Math.max(0, value));
    this.cursor = [clamp(x + dx * step, before.width), clamp(y + dy * step, before.height)];
    if (this.down) this.extend(this.cursor);
    this.draw();
  }

  putDown() {
    this.down = !this.down;
    this.cursor ??= this.look.map((share, i) => share * (i ? this.before.height : this.before.width));
    if (this.down) this.begin(this.cursor);
  }
}
