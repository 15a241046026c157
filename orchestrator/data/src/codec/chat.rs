//! Implements [`Template`] for the codec: it renders conversations with tools as text, and converts between text
//! and ids.

use rolldock_trajectory::{Chat, Template, TemplateError};

use super::TextCodec;
use crate::DataError;

impl Template for TextCodec {
    /// Renders with the chat template. Without a template, joins the contents that are strings by line feeds, and
    /// omits other contents.
    fn render(&self, chat: &Chat<'_>) -> Result<String, TemplateError> {
        let Some(template) = &self.template else {
            let contents = chat.messages.iter().filter_map(|message| message.get("content")?.as_str());
            return Ok(contents.collect::<Vec<_>>().join("\n"));
        };
        template.render_chat(chat).map_err(complaint)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, TemplateError> {
        TextCodec::encode(self, text).map_err(complaint)
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.decode_with_specials(ids)
    }

    fn is_end(&self, id: u32) -> bool {
        self.eos_ids.binary_search(&id).is_ok()
    }
}

fn complaint(error: DataError) -> TemplateError {
    TemplateError(error.to_string())
}

#[cfg(test)]
mod tests;
