// Anthropic's client for Node.js: messages, its stream helper, tools and counts.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.WEIGHBRIDGE_URL, apiKey: process.env.WEIGHBRIDGE_KEY });
const messages = [{ role: "user", content: "hi" }];
const tool = { name: "weigh", input_schema: { type: "object", properties: { kg: { type: "integer" } } } };

const whole = await client.messages.create({ model: "auto", max_tokens: 50, messages });
const stream = client.messages.stream({ model: "auto", max_tokens: 50, messages });
const streamed = await stream.finalText();
const usage = (await stream.finalMessage()).usage.output_tokens;
const called = await client.messages.create({ model: "tools", max_tokens: 50, messages, tools: [tool] });
const counted = await client.messages.countTokens({ model: "auto", messages });

console.log(
  JSON.stringify({
    messages: whole.content[0].text,
    messages_streamed: streamed,
    messages_usage: usage,
    messages_tool: called.content[0].input,
    counted: counted.input_tokens > 0,
  }),
);
