// The view of one sentence: what the model makes of it, from the text to the words for each [MASK].

import { notice } from "./draw.js";

export const title = "Sentence";

export async function render(container, context) {
  container.append(notice("hint", context.model.path));
}
