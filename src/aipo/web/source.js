// Where the image comes from: a click picks a sample, a file is sent as it is, without its name or path.
const MAX_BYTES = 20e6; // the server checks again

function press(chosen) {
  element.querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", button === chosen));
}

element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  press(button);
  tell("");
  trigger("pick", { name: button.dataset.name });
});

async function send(file) {
  const value = await fitted(file);
  if (value.refused) return tell(value.refused);
  props.value = value;
  trigger("upload");
}

// The server answers with a small picture, or says why it refuses this one.
async function fitted(file) {
  if (file.size > MAX_BYTES) return { refused: `Not accepted: the limit is ${MAX_BYTES / 1e6} MB.` };
  try {
    const answer = await fetch("picture", { method: "POST", body: file });
    const content = await answer.json();
    return answer.ok ? content : { refused: content.error };
  } catch {
    return { refused: "The picture did not reach the server; try again." };
  }
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
function tell(text) {
  const refusal = element.querySelector(".refusal");
  refusal.textContent = text;
  refusal.hidden = !text;
}

// The server's answer takes the place of the picture.
watch("value", () => {
  tell(props.value?.refused ?? "");
  if (props.value?.taken) press(null);
});
press(element.querySelector("button"));
