for (const input of document.querySelectorAll(".slider input"))
  input.addEventListener("input", () => input.parentElement.style.setProperty("--at", input.value + "%"));
