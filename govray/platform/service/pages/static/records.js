// "Was this text used?": the hash is computed here, and only the hash is sent.

import { byId } from "./dom.js";

// Browsers hash over HTTPS or on this machine. Elsewhere the note stays, and the text is sent.
if (crypto.subtle) {
  byId("sent").remove();
  byId("file-field").hidden = false;
  byId("text").removeAttribute("name");
  byId("search-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const [file] = byId("file").files;
    const data = file ? await file.arrayBuffer() : new TextEncoder().encode(byId("text").value);
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
    const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
    byId("sha256").value = data.byteLength ? hex : "";
    event.target.submit();
  });
}
