// What is drawn over the picture.

// Which parts are restored so far can hardly be seen when the picture is small.
export function drawOutlines(context, patches, scale) {
  for (const [width, color] of [[4, "#0008"], [2, "#fff"]]) {
    context.lineWidth = width / scale;
    context.strokeStyle = color;
    for (const p of patches) context.strokeRect(p.x, p.y, p.width, p.height);
  }
}

// Between before and after, with a handle; x in canvas pixels.
export function drawDivider(context, x) {
  const ratio = window.devicePixelRatio || 1, height = context.canvas.height, y = height / 2;
  context.fillStyle = "#fff";
  context.shadowColor = "#0009";
  context.shadowBlur = 4 * ratio;
  context.fillRect(x - ratio, 0, 2 * ratio, height);
  context.beginPath();
  context.arc(x, y, 16 * ratio, 0, 7);
  context.fill();
  context.shadowBlur = 0;
  context.fillStyle = "#1c2430";
  context.font = `${16 * ratio}px sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText("↔", x, y);
}
