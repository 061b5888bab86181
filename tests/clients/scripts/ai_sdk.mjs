// The AI SDK with its provider for OpenAI as it is by default, which calls responses; and its chat models.
import { openai } from "@ai-sdk/openai";
import { generateText, Output, streamText, tool } from "ai";
import { z } from "zod";

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

console.log(JSON.stringify({ responses: await seenOf(openai), chat: await seenOf(openai.chat) }));
