// The AI SDK with its provider for OpenAI as it is by default, which calls responses; its chat models; and Anthropic's provider.
import { createAnthropic } from "@ai-sdk/anthropic";
import { openai } from "@ai-sdk/openai";
import { generateText, Output, streamText, tool } from "ai";
import { z } from "zod";

// It would say on standard output that it does not know the longest answer of a model called auto.
globalThis.AI_SDK_LOG_WARNINGS = false;
const prompt = "hi";
const output = Output.object({ schema: z.object({ answer: z.number() }) });
const tools = { weigh: tool({ description: "Weigh.", inputSchema: z.object({ kg: z.number() }) }) };

async function seenOf(model) {
  const whole = await generateText({ model: model("auto"), prompt });
  const streamed = await streamText({ model: model("auto"), prompt }).text;
  const called = await generateText({ model: model("tools"), prompt, tools });
  const parsed = await generateText({ model: model("json"), prompt, output });
  return [whole.text, streamed, called.toolCalls[0].input, parsed.output.answer];
}

const anthropic = createAnthropic({ baseURL: `${process.env.WEIGHBRIDGE_URL}/v1`, apiKey: process.env.WEIGHBRIDGE_KEY });

async function seenOfAnthropic() {
  const whole = await generateText({ model: anthropic("auto"), prompt });
  const streamed = await streamText({ model: anthropic("auto"), prompt }).text;
  const called = await generateText({ model: anthropic("tools"), prompt, tools });
  return [whole.text, streamed, called.toolCalls[0].input];
}

console.log(
  JSON.stringify({
    responses: await seenOf(openai),
    chat: await seenOf(openai.chat),
    messages: await seenOfAnthropic(),
  }),
);
