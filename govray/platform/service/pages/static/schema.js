// A validator for the JSON Schemas that pydantic writes of govray's documents, and of no others.
//
// A keyword that it does not know is an error: a rule that nobody looks at is no rule. What a
// schema cannot say (that dates are in order, that a licence is a licence) is not checked here.

const ANNOTATIONS = new Set(["title", "description", "default", "examples", "$defs", "format"]);
ANNOTATIONS.add("contentEncoding").add("deprecated").add("propertyNames");

export function validate(value, schema, where = "document", root = schema) {
  if (schema === true) return;
  for (const keyword of Object.keys(schema)) {
    if (ANNOTATIONS.has(keyword)) continue;
    const rule = Object.hasOwn(RULES, keyword) ? RULES[keyword] : null;
    if (!rule) throw new Error(`schema: unknown keyword ${keyword}`);
    rule(value, schema[keyword], where, root, schema);
  }
  if (schema.propertyNames && isObject(value)) {
    for (const key of Object.keys(value)) validate(key, schema.propertyNames, where, root);
  }
}

const isObject = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const TYPES = {
  object: isObject,
  array: Array.isArray,
  string: (value) => typeof value === "string",
  integer: (value) => Number.isSafeInteger(value),
  number: (value) => typeof value === "number",
  boolean: (value) => typeof value === "boolean",
  null: (value) => value === null,
};

function demand(holds, where, what) {
  if (!holds) throw new Error(`${where}: ${what}`);
}

const patterns = new Map();
function pattern(source) {
  if (!patterns.has(source)) patterns.set(source, new RegExp(source, "u"));
  return patterns.get(source);
}

const characters = (value) => [...value].length;

const RULES = {
  $ref(value, ref, where, root) {
    const name = ref.replace("#/$defs/", "");
    demand(Object.hasOwn(root.$defs, name), where, `no schema ${ref}`);
    validate(value, root.$defs[name], where, root);
  },
  type(value, kind, where) {
    demand(TYPES[kind](value), where, `should be of type ${kind}`);
  },
  const(value, constant, where) {
    demand(value === constant, where, `should be ${JSON.stringify(constant)}`);
  },
  enum(value, allowed, where) {
    demand(allowed.includes(value), where, `should be one of ${allowed.join(", ")}`);
  },
  pattern(value, source, where) {
    demand(typeof value !== "string" || pattern(source).test(value), where, "has another form");
  },
  minLength(value, least, where) {
    demand(typeof value !== "string" || characters(value) >= least, where, "is too short");
  },
  maxLength(value, most, where) {
    demand(typeof value !== "string" || characters(value) <= most, where, "is too long");
  },
  minimum(value, least, where) {
    demand(typeof value !== "number" || value >= least, where, `is below ${least}`);
  },
  maximum(value, most, where) {
    demand(typeof value !== "number" || value <= most, where, `is above ${most}`);
  },
  exclusiveMinimum(value, least, where) {
    demand(typeof value !== "number" || value > least, where, `is not above ${least}`);
  },
  exclusiveMaximum(value, most, where) {
    demand(typeof value !== "number" || value < most, where, `is not below ${most}`);
  },
  minItems(value, least, where) {
    demand(!Array.isArray(value) || value.length >= least, where, `has fewer than ${least} items`);
  },
  maxItems(value, most, where) {
    demand(!Array.isArray(value) || value.length <= most, where, `has more than ${most} items`);
  },
  minProperties(value, least, where) {
    demand(Object.keys(value).length >= least, where, `has fewer than ${least} members`);
  },
  maxProperties(value, most, where) {
    demand(Object.keys(value).length <= most, where, `has more than ${most} members`);
  },
  prefixItems(value, schemas, where, root) {
    schemas.forEach((schema, i) => validate(value[i], schema, `${where}[${i}]`, root));
  },
  items(value, schema, where, root, whole) {
    const from = whole.prefixItems?.length ?? 0;
    value.slice(from).forEach((item, i) => validate(item, schema, `${where}[${from + i}]`, root));
  },
  required(value, names, where) {
    for (const name of names) demand(Object.hasOwn(value, name), where, `lacks '${name}'`);
  },
  properties(value, schemas, where, root) {
    for (const [name, schema] of Object.entries(schemas)) {
      if (Object.hasOwn(value, name)) validate(value[name], schema, `${where}.${name}`, root);
    }
  },
  patternProperties(value, schemas, where, root) {
    // As pydantic reads it: a dictionary whose keys all have one of these forms.
    for (const name of Object.keys(value)) {
      const found = Object.keys(schemas).find((source) => pattern(source).test(name));
      demand(found !== undefined, where, `has a member of another form, '${name}'`);
      validate(value[name], schemas[found], `${where}.${name}`, root);
    }
  },
  additionalProperties(value, schema, where, root, whole) {
    const known = whole.properties ?? {};
    for (const name of Object.keys(value)) {
      if (Object.hasOwn(known, name)) continue;
      demand(schema !== false, where, `has the unknown field '${name}'`);
      validate(value[name], schema, `${where}.${name}`, root);
    }
  },
  anyOf(value, schemas, where, root) {
    // An absent field is absent: `null` is refused wherever a field is optional.
    demand(value !== null, where, "is null");
    const errors = [];
    for (const schema of schemas) {
      try {
        validate(value, schema, where, root);
        return;
      } catch (error) {
        errors.push(error);
      }
    }
    throw errors[0];
  },
};
