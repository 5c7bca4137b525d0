// A user with stubs of another language: @grpc/grpc-js, which shares no code with the server's gRPC.
// node client.js TARGET PROTO_ROOT prints what it saw as one line of JSON.
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [target, root] = process.argv.slice(2);
const options = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true, includeDirs: [root] };
const load = (file) => grpc.loadPackageDefinition(loader.loadSync(file, options));
const insecure = grpc.credentials.createInsecure();
const { Generation } = load("protos/firsttoken/v1/generation.proto").firsttoken.v1;
const { GRPCInferenceService } = load("protos/inference/grpc_service.proto").inference;
const generation = new Generation(target, insecure);
const inference = new GRPCInferenceService(target, insecure);
const warm = { temperature: 1.0, seed: 11 };
const request = { prompt: { text: "Tell me" }, max_tokens: 30, sampling: warm };

const unary = (client, method, message) =>
  new Promise((resolve) => client[method](message, (error, answer) => resolve(error ? { code: error.code, details: error.details } : answer)));

function stream(message) {
  return new Promise((resolve) => {
    const seen = { text: "", tokens: 0, final: null, code: 0 };
    const call = generation.Generate(message);
    call.on("data", ({ delta, final }) => {
      if (delta) { seen.text += delta.text; seen.tokens += delta.tokens.length; }
      if (final) seen.final = final.finish_reason;
    });
    call.on("error", (error) => { seen.code = error.code; seen.details = error.details; });
    call.on("close", () => resolve(seen));
    call.on("end", () => resolve(seen));
  });
}

function cancel() {
  return new Promise((resolve) => {
    const call = generation.Generate({ ...request, max_tokens: 5000 });
    let heard = 0;
    call.on("data", () => { heard += 1; if (heard === 3) call.cancel(); });
    call.on("error", (error) => resolve({ heard, code: error.code }));
  });
}

const bytes = (name, text) => ({ name, datatype: "BYTES", shape: [1], contents: { bytes_contents: [Buffer.from(text)] } });
const inputs = (streaming) => [
  bytes("text_input", "Tell me"),
  { name: "max_tokens", datatype: "INT32", shape: [1], contents: { int_contents: [30] } },
  { name: "temperature", datatype: "FP32", shape: [1], contents: { fp32_contents: [1.0] } },
  { name: "random_seed", datatype: "UINT64", shape: [1], contents: { uint64_contents: [11] } },
  { name: "stream", datatype: "BOOL", shape: [1], contents: { bool_contents: [streaming] } },
  { name: "exclude_input_in_output", datatype: "BOOL", shape: [1], contents: { bool_contents: [true] } },
];
const text = (response) => response.raw_output_contents[response.outputs.findIndex((o) => o.name === "text_output")].subarray(4).toString();

function inferStream() {
  return new Promise((resolve) => {
    const call = inference.ModelStreamInfer();
    let said = "";
    call.on("data", ({ error_message, infer_response }) => {
      if (error_message) { resolve(error_message); call.cancel(); return; }
      if (infer_response.outputs.some((o) => o.name === "text_output")) said += text(infer_response);
      if (infer_response.parameters.triton_final_response.bool_param) call.end();
    });
    call.on("error", () => {});
    call.on("end", () => resolve(said));
    call.write({ model_name: "ensemble", id: "js", inputs: inputs(true) });
  });
}

(async () => {
  const seen = {
    stream: await stream(request),
    complete: (await unary(generation, "Complete", request)).outputs[0].text,
    refused: await stream({ ...request, max_tokens: -1 }),
    infer: text(await unary(inference, "ModelInfer", { model_name: "ensemble", inputs: inputs(false) })),
    infer_stream: await inferStream(),
    cancel: await cancel(),
  };
  console.log(JSON.stringify(seen));
  process.exit(0);
})();
