// OpenAI's client for Node.js: chat, responses, conversations, the background, tools, schemas, streams and Azure's form.
import OpenAI, { AzureOpenAI } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const url = process.env.WEIGHBRIDGE_URL;
const apiKey = process.env.WEIGHBRIDGE_KEY;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey });
const messages = [{ role: "user", content: "hi" }];
const dot =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const show = [{ role: "user", content: [{ type: "image_url", image_url: { url: dot } }] }];
const Answer = z.object({ answer: z.number() });
const parameters = {
  type: "object",
  properties: { kg: { type: "integer" } },
  required: ["kg"],
  additionalProperties: false,
};
const chatTool = { type: "function", function: { name: "weigh", strict: true, parameters } };
const responsesTool = { type: "function", name: "weigh", strict: true, parameters };

const listed = [];
for await (const model of client.models.list()) listed.push(model.id);

const chat = client.chat.completions;
const whole = await chat.create({ model: "auto", messages });
const chatStreamed = await chat.stream({ model: "auto", messages }).finalContent();
const chatParsed = await chat.parse({
  model: "json",
  messages,
  response_format: zodResponseFormat(Answer, "answer"),
});
const chatShown = await chat.create({ model: "auto", messages: show });
const completed = await client.completions.create({ model: "auto", prompt: "hi" });
const chatCalled = await chat.create({ model: "tools", messages, tools: [chatTool] });

const first = await client.responses.create({ model: "auto", input: "hi" });
const streamed = await client.responses.stream({ model: "auto", input: "hi" }).finalResponse();
const parsed = await client.responses.parse({
  model: "json",
  input: "hi",
  text: { format: zodTextFormat(Answer, "answer") },
});
const called = await client.responses.create({ model: "tools", input: "hi", tools: [responsesTool] });
const on = await client.responses.create({ model: "auto", input: "on", previous_response_id: first.id });

const made = await client.conversations.create({});
await client.responses.create({ model: "auto", input: "one", conversation: made.id });

let queued = await client.responses.create({ model: "auto", input: "hi", background: true });
while (queued.status === "queued" || queued.status === "in_progress") {
  await new Promise((resolve) => setTimeout(resolve, 100));
  queued = await client.responses.retrieve(queued.id);
}

// An address and Azure's endpoint exclude each other, and the client takes the one from the environment.
delete process.env.OPENAI_BASE_URL;
const azure = new AzureOpenAI({ endpoint: url, apiKey, apiVersion: "2024-10-21" });
const ofAzure = await azure.chat.completions.create({ model: "auto", messages });

console.log(
  JSON.stringify({
    models: listed.includes("auto") && listed.includes("plain"),
    chat: whole.choices[0].message.content,
    chat_streamed: chatStreamed,
    chat_image: chatShown.choices[0].message.content,
    completions: completed.choices[0].text,
    chat_parsed: chatParsed.choices[0].message.parsed.answer,
    chat_tool: chatCalled.choices[0].message.tool_calls[0].function.arguments,
    responses: first.output_text,
    responses_streamed: streamed.output[0].content[0].text,
    responses_parsed: parsed.output_parsed.answer,
    responses_tool: called.output[0].arguments,
    responses_on: (await client.responses.inputItems.list(on.id)).data.length,
    conversation: (await client.conversations.items.list(made.id)).data.map((item) => item.type),
    background: queued.output_text,
    azure: ofAzure.choices[0].message.content,
  }),
);
