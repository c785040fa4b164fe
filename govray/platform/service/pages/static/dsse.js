// DSSE envelopes and in-toto statements, in govray's one spelling: the bytes are verified first,
// and only then is the payload opened. The rules are those of `dsse.py` and `statement.py`.

import { concat, digestOf, fromBase64, sha256, hex, utf8 } from "./bytes.js";
import { encode, parseCanonical } from "./canonical.js";
import { verifies } from "./keys.js";
import { validate } from "./schema.js";

const IN_TOTO = "application/vnd.in-toto+json";

const TEXT = { type: "string", minLength: 1, maxLength: 256 };
const ENVELOPE = {
  type: "object",
  required: ["payload", "payloadType", "signatures"],
  additionalProperties: false,
  properties: {
    payload: { type: "string" },
    payloadType: TEXT,
    signatures: {
      type: "array",
      minItems: 1,
      maxItems: 16,
      items: {
        type: "object",
        required: ["sig"],
        additionalProperties: false,
        properties: { sig: { type: "string" }, keyid: TEXT },
      },
    },
  },
};

const STATEMENT = {
  type: "object",
  required: ["_type", "predicateType", "subject", "predicate"],
  additionalProperties: false,
  properties: {
    _type: { const: "https://in-toto.io/Statement/v1" },
    predicateType: TEXT,
    predicate: { type: "object" },
    subject: {
      type: "array",
      minItems: 1,
      items: {
        type: "object",
        required: ["name", "digest"],
        additionalProperties: false,
        properties: {
          name: { type: "string", minLength: 1, maxLength: 1024 },
          digest: {
            type: "object",
            required: ["sha256"],
            additionalProperties: false,
            properties: { sha256: { type: "string", pattern: "^[0-9a-f]{64}$" } },
          },
        },
      },
    },
  },
};

export function pae(type, payload) {
  const kind = utf8(type);
  return concat(utf8(`DSSEv1 ${kind.length} `), kind, utf8(` ${payload.length} `), payload);
}

export function parseEnvelope(bytes, where) {
  const value = parseCanonical(bytes, where);
  validate(value, ENVELOPE, where);
  return {
    type: value.payloadType,
    payload: fromBase64(value.payload),
    signatures: value.signatures.map(({ sig, keyid }) => ({ sig: fromBase64(sig), keyid })),
  };
}

// The keyids of those keys that signed; computed from the keys, never read from the envelope.
export async function signedBy(envelope, keys) {
  const message = pae(envelope.type, envelope.payload);
  const found = new Set();
  for (const key of keys) {
    for (const { sig } of envelope.signatures) {
      if (await verifies(key, message, sig)) found.add(key.keyid);
    }
  }
  return found;
}

// What an envelope states, as a document of one kind. Signatures are not looked at here.
export function readStatement(envelope, kind, where) {
  if (envelope.type !== IN_TOTO) throw new Error(`${where}: the payload type is not in-toto's`);
  const value = parseCanonical(envelope.payload, where);
  validate(value, STATEMENT, where);
  if (value.predicateType !== kind.predicateType) {
    throw new Error(`${where}: the statement is of another type`);
  }
  const names = value.subject.map((subject) => subject.name);
  if (new Set(names).size < names.length) throw new Error(`${where}: a subject is named twice`);
  validate(value.predicate, kind.schema, where);
  return {
    document: value.predicate,
    digest: digestOf(envelope.payload),
    subjects: new Map(value.subject.map(({ name, digest }) => [name, `sha256:${digest.sha256}`])),
  };
}

// A document that is about no file names itself as its subject.
export function checkSelf(read, name, where) {
  const own = `sha256:${hex(sha256(utf8(encode(read.document))))}`;
  if (read.subjects.size !== 1 || read.subjects.get(name) !== own) {
    throw new Error(`${where}: the statement's subject is not the document itself`);
  }
}
