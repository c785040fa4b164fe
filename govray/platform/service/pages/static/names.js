// What files of a model folder are called: the rules of `model_folder.py`, over its own tables.

// As Python's casefold, of what can become ASCII: some file systems know no case.
const folded = (name) => name.toUpperCase().toLowerCase();

const within = (path, folders) => folders.some((each) => `${path}/`.startsWith(`${each}/`));

const suffixAt = (last) => {
  const at = last.lastIndexOf(".");
  return at > 0 && at < last.length - 1 ? at : last.length;
};

export class Names {
  constructor(tables) {
    const { inert, outsiders } = tables;
    this.tables = tables;
    this.texts = new RegExp(`^(${inert.texts.join("|")})([-_][a-z0-9._-]+)?$`);
    this.outsiders = new RegExp(`^(${outsiders.patterns.join("|")})$`);
  }

  // A file of this name stands where only attested files may.
  reserved(name) {
    const [path, { folders, names }] = [folded(name), this.tables.reserved];
    return within(path, folders) || names.includes(path);
  }

  // A file of this name makes a claim that an attestation must cover.
  covered(name) {
    const last = folded(name).split("/").pop();
    return this.reserved(name) || this.tables.tensors.suffixes.includes(last.slice(suffixAt(last)));
  }

  // People read it, and no loader does.
  inert(name) {
    const [path, { folders, names, suffixes }] = [folded(name), this.tables.inert];
    const last = path.split("/").pop();
    const [stem, suffix] = [last.slice(0, suffixAt(last)), last.slice(suffixAt(last))];
    if (within(path, folders) || names.includes(last) || suffixes.includes(suffix)) return true;
    return ["", ".txt"].includes(suffix) && this.texts.test(stem);
  }

  // Signed by others than the operator, after the attestation: for the steps 14 to 16.
  byOutsiders(name) {
    return this.outsiders.test(name);
  }

  same(name, other) {
    return folded(name) === folded(other);
  }
}
