#!/usr/bin/env node
// Prisma's query engine in WebAssembly behind the HTTP of its binary, which no package registry has, for Prisma's client in Python.
// The client speaks GraphQL, this build of the engine its JSON protocol alone: queries and answers are translated.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.WB_LITELLM_NODE}/`);
if (process.argv.includes("--version")) {
  console.log("query-engine 393aa359c9ad4a4bb28630fb5613f9c281cde053");
  process.exit(0);
}
const port = Number(process.argv[process.argv.indexOf("-p") + 1]);
const { Pool } = require("pg");
const { PrismaPg } = require("@prisma/adapter-pg");
const { bindAdapter } = require("@prisma/driver-adapter-utils");
const runtime = require("@prisma/client/runtime/query_engine_bg.postgresql.js");
const wasm = new WebAssembly.Module(readFileSync(require.resolve("@prisma/client/runtime/query_engine_bg.postgresql.wasm")));
runtime.__wbg_set_wasm(new WebAssembly.Instance(wasm, { "./query_engine_bg.js": runtime }).exports);

const datamodel = readFileSync(process.env.PRISMA_DML_PATH, "utf8");
const overrides = JSON.parse(process.env.OVERWRITE_DATASOURCES || "[]");
const url = overrides[0]?.url || process.env.DATABASE_URL;
const address = new URL(url);
address.search = "";
const pool = new Pool({ connectionString: address.toString(), max: 5 });
const adapter = bindAdapter(new PrismaPg(pool));
const engine = new runtime.QueryEngine({ datamodel, env: process.env, logQueries: false, ignoreEnvVarErrors: true, datasourceOverrides: {},
  logLevel: "error", configDir: ".", engineProtocol: "json" }, (line) => { if (process.env.WB_PRISMA_LOG) console.error(line); }, adapter);
const trace = JSON.stringify({});
await engine.connect(trace);

const { parse } = require("graphql");
const ACTION = /^(findUnique|findFirst|findMany|createOne|createMany|updateOne|updateMany|upsertOne|deleteOne|deleteMany|aggregate|groupBy)(.+?)(OrThrow)?$/;

// Columns of JSON by model: GraphQL has their values as text, which the engine would take for a JSON string.
const JSON_COLUMNS = Object.fromEntries([...datamodel.matchAll(/^model (\w+) \{([^]*?)^\}/gm)].map(([, model, body]) => [model,
  new Set([...body.matchAll(/^\s*(\w+)\s+Json\b/gm)].map(([, column]) => column))]));
const FILTERS = new Set(["equals", "not", "array_contains", "array_starts_with", "array_ends_with"]);

function typed(value, columns, isJson = false, isFilter = false) {
  if (Array.isArray(value)) return value.map((each) => typed(each, columns, isJson, isFilter));
  if (value && typeof value === "object" && !("$type" in value)) {
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name,
      isJson ? typed(inner, columns, FILTERS.has(name), true) : typed(inner, columns, columns.has(name))]));
  }
  return isJson && typeof value === "string" ? { $type: "Json", value } : value;
}
function valueOf(node) {
  switch (node.kind) {
    case "ObjectValue": return Object.fromEntries(node.fields.map((each) => [each.name.value, valueOf(each.value)]));
    case "ListValue": return node.values.map(valueOf);
    case "IntValue": return Number.isSafeInteger(Number(node.value)) ? Number(node.value) : { $type: "BigInt", value: node.value };
    case "FloatValue": return Number(node.value);
    case "NullValue": return null;
    default: return node.value;
  }
}
const argumentsOf = (field) => Object.fromEntries((field.arguments ?? []).map((each) => [each.name.value, valueOf(each.value)]));
const selectionOf = (set) => Object.fromEntries((set?.selections ?? []).map((each) => [each.name.value,
  each.selectionSet || each.arguments?.length ? { arguments: argumentsOf(each), selection: selectionOf(each.selectionSet) } : true]));

// One query of the client's GraphQL as the JSON that the engine in WebAssembly takes, and the name of its result.
function translated(text) {
  const field = parse(text).definitions[0].selectionSet.selections[0];
  const name = field.name.value, found = ACTION.exec(name);
  const given = argumentsOf(field);
  const query = { arguments: found ? typed(given, JSON_COLUMNS[found[2]] ?? new Set()) : given, selection: selectionOf(field.selectionSet) };
  const asked = found ? { modelName: found[2], action: found[1] + (found[3] ?? ""), query } : { action: name, query };
  return { asked, name: field.alias?.value ?? name };
}
// Values as GraphQL has them.
function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value && typeof value === "object") {
    if ("$type" in value) return value.value;
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, plain(inner)]));
  }
  return value;
}
const renamed = (answer, name) => answer.data ? { ...answer, data: { [name]: plain(Object.values(answer.data)[0]) } } : answer;
async function asked(text, transaction) {
  const body = JSON.parse(text);
  if (!body.batch) {
    const { asked, name } = translated(body.query);
    return JSON.stringify(renamed(JSON.parse(await engine.query(JSON.stringify(asked), trace, transaction)), name));
  }
  const all = body.batch.map((each) => translated(each.query));
  const answer = JSON.parse(await engine.query(JSON.stringify({ batch: all.map((each) => each.asked),
    transaction: body.transaction ? {} : undefined }), trace, transaction));
  if (answer.batchResult) answer.batchResult = answer.batchResult.map((each, place) => renamed(each, all[place].name));
  return JSON.stringify(answer);
}

const body = async (request) => { let text = ""; for await (const part of request) text += part; return text; };
createServer(async (request, response) => {
  let answer;
  try {
    const text = await body(request);
    const path = request.url.split("?")[0].split("/").filter(Boolean);
    if (path[0] === "status") answer = '{"status":"ok"}';
    else if (path[0] === "metrics") answer = '{"counters":[],"gauges":[],"histograms":[]}';
    else if (path[0] === "transaction" && path[1] === "start") answer = await engine.startTransaction(text, trace);
    else if (path[0] === "transaction") answer = await engine[path[2] === "commit" ? "commitTransaction" : "rollbackTransaction"](path[1], trace);
    else answer = await asked(text, request.headers["x-transaction-id"]);
    if (process.env.WB_PRISMA_LOG) console.error(text.slice(0, 2000), "->", answer.slice(0, 2000));
  } catch (error) {
    answer = JSON.stringify({ errors: [{ error: String(error), user_facing_error: { is_panic: false, message: String(error) } }] });
    console.error(error);
  }
  response.setHeader("Content-Type", "application/json");
  response.end(answer);
}).listen(port, "localhost");
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(0));
