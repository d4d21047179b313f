// Where the picture comes from: a click picks a sample, a file is sent as it is, with neither name nor path.
const MAX_BYTES = 20e6; // the server looks again

function press(chosen) {
  element.querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", button === chosen));
}

element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  press(button);
  element.querySelector(".refusal").hidden = true;
  trigger("pick", { name: button.dataset.name });
});

function send(file) {
  const reader = new FileReader();
  reader.onload = () => {
    props.value = { bytes: file.size, data: file.size > MAX_BYTES ? null : reader.result.split(",")[1] ?? "" };
    trigger("upload");
  };
  reader.readAsDataURL(file.size > MAX_BYTES ? file.slice(0, 1) : file);
}

element.addEventListener("change", (event) => {
  if (event.target.files.length) send(event.target.files[0]);
  event.target.value = ""; // so that the same file can be sent again
});
element.addEventListener("dragover", (event) => event.preventDefault());
element.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) send(event.dataTransfer.files[0]);
});
// The server's answer takes the place of the file.
watch("value", () => {
  const refusal = element.querySelector(".refusal");
  refusal.textContent = props.value?.refused ?? "";
  refusal.hidden = !refusal.textContent;
  if (props.value?.taken) press(null);
});
press(element.querySelector("button"));
