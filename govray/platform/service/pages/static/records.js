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
    const asked = file ? [await file.arrayBuffer()] : formsOf(byId("text").value);
    byId("sha256").value = asked[0].byteLength ? (await Promise.all(asked.map(hash))).join(",") : "";
    event.target.submit();
  });
}

// A record may have its accents composed or decomposed; a keyboard gives one of the two.
function formsOf(text) {
  const forms = new Set([text, text.normalize("NFC"), text.normalize("NFD")]);
  return [...forms].map((each) => new TextEncoder().encode(each));
}

async function hash(data) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
