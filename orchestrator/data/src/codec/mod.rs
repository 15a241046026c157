//! Text to token ids and back, as the model's servers do it.
//!
//! Ids are what the rollout works with; text is for people and rewards. Nothing here ever encodes a text that
//! was decoded from a response, since that gives other ids.
//!
//! # Invariants
//! - [`TextCodec::decode_tail`] gives the end of what [`TextCodec::decode`] gives, character by character.
//! - A prompt's ids do not depend on the clock, nor on truncation or padding that a tokenizer's file asks
//!   for.

use std::path::{Path, PathBuf};

use tokenizers::{DecoderWrapper, Tokenizer};

mod files;
mod template;

use crate::{DataError, Message, PromptContent};
use files::{SpecialToken, TokenizerConfig, TokenizerFiles};
use template::{ChatTemplate, TemplateTokens};

/// Characters that a cut in the middle of one can spoil at the start of a tail: a UTF-8 character has at most
/// three bytes after its first, and each becomes a character of its own.
const SPOILT_CHARS_MAX: usize = 3;

/// What [`TextCodec::open`] needs to know.
#[derive(Debug, Clone)]
pub struct CodecConfig {
    /// A folder, a `tokenizer.json`, a hub id that is in the local cache, or `builtin`.
    pub tokenizer: String,
    /// Which chat template prompts go through.
    pub chat_template: TemplateChoice,
    /// What templates that print the date are told, in seconds since 1970; they fail without it.
    pub unix_seconds: Option<i64>,
}

/// Where the chat template comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TemplateChoice {
    /// The tokenizer's own; where it has none, prompts go raw.
    #[default]
    Auto,
    /// Prompts go raw: their messages' contents, joined by line feeds.
    Raw,
    /// A Jinja file.
    File(PathBuf),
}

impl From<&str> for TemplateChoice {
    /// A recipe's `auto`, `none` or file name.
    fn from(word: &str) -> Self {
        match word {
            "auto" => Self::Auto,
            "none" => Self::Raw,
            file => Self::File(file.into()),
        }
    }
}

/// A prompt as text and as ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedPrompt {
    /// What was encoded.
    pub text: String,
    /// Its token ids.
    pub ids: Vec<u32>,
}

/// A tokenizer with its chat template. Shared by threads; every method takes `&self`.
pub struct TextCodec {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    origin: String,
    eos_ids: Vec<u32>,
    vocab_size: u32,
    byte_level: bool,
}

impl std::fmt::Debug for TextCodec {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("TextCodec")
            .field("origin", &self.origin)
            .field("vocab_size", &self.vocab_size)
            .field("eos_ids", &self.eos_ids)
            .field("template", &self.template.is_some())
            .finish_non_exhaustive()
    }
}

impl TextCodec {
    /// Reads a tokenizer and its chat template. Blocks; a large one takes about a second.
    pub fn open(config: &CodecConfig) -> Result<Self, DataError> {
        let mut files = TokenizerFiles::locate(&config.tokenizer)?;
        let tokenizer = load(&files)?;
        let template_source = match &config.chat_template {
            TemplateChoice::Raw => None,
            TemplateChoice::File(file) => Some((file.display().to_string(), read_template(file)?)),
            TemplateChoice::Auto => {
                let configured =
                    files.config.chat_template.take().and_then(|template| template.into_default());
                files.template.take().or(configured).map(|source| (files.origin.clone(), source))
            }
        };
        let template = match template_source {
            Some((origin, source)) => {
                let tokens = template_tokens(&files.config);
                Some(ChatTemplate::compile(origin, &source, tokens, config.unix_seconds)?)
            }
            None => None,
        };
        let vocab_size = tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id.saturating_add(1));
        Ok(Self {
            eos_ids: end_ids(&tokenizer, &files),
            byte_level: matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))),
            vocab_size,
            tokenizer,
            template,
            origin: files.origin,
        })
    }

    /// The embedded tokenizer with its own template: about 3,400 tokens, digits one by one.
    pub fn builtin() -> Result<Self, DataError> {
        Self::open(&CodecConfig {
            tokenizer: "builtin".to_owned(),
            chat_template: TemplateChoice::Auto,
            unix_seconds: None,
        })
    }

    /// Where the tokenizer came from: a folder or `builtin`.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Whether prompts go through a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// One more than the largest id; a server whose vocabulary is smaller runs another model.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Ids that end a response: the tokenizer's and those of `generation_config.json`, ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// Ids of a text as it stands: nothing is put before or after it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.encode_with(text, false)
    }

    /// The text for a conversation: through the template, or the raw contents joined by line feeds.
    pub fn render(&self, messages: &[Message]) -> Result<String, DataError> {
        let Some(template) = &self.template else {
            let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
            return Ok(contents.join("\n"));
        };
        template.render(messages)
    }

    /// A prompt in the form that the engine gets.
    ///
    /// A template writes the special tokens itself; to a raw prompt the tokenizer adds its own, as servers
    /// do.
    pub fn encode_prompt(&self, content: &PromptContent) -> Result<EncodedPrompt, DataError> {
        let text = self.prompt_text(content)?;
        let ids = self.encode_with(&text, self.template.is_none())?;
        Ok(EncodedPrompt { text, ids })
    }

    /// Lengths in tokens of many prompts, in their order, on all cores.
    pub fn prompt_lengths(&self, contents: &[PromptContent]) -> Result<Vec<usize>, DataError> {
        let texts: Vec<String> =
            contents.iter().map(|content| self.prompt_text(content)).collect::<Result<_, _>>()?;
        let encodings = self.tokenizer.encode_batch_fast(texts, self.template.is_none()).map_err(refusal)?;
        Ok(encodings.iter().map(|encoding| encoding.get_ids().len()).collect())
    }

    /// The text of a response, special tokens left out; unknown ids and broken characters become what the
    /// tokenizer makes of them, never an error.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decode_with(ids, true)
    }

    /// The text of ids with their special tokens.
    pub fn decode_with_specials(&self, ids: &[u32]) -> String {
        self.decode_with(ids, false)
    }

    /// The last `code_points` characters of [`decode`](Self::decode), or all of a shorter text.
    ///
    /// Decodes only as many tokens from the end as that takes. It rests on a byte-level decoder, for which
    /// the text of a suffix is, but for its first characters, a suffix of the text; others decode everything.
    pub fn decode_tail(&self, ids: &[u32], code_points: usize) -> String {
        let mut tokens = if self.byte_level { code_points / 2 + 16 } else { ids.len() };
        loop {
            let start = ids.len().saturating_sub(tokens);
            let mut text = self.decode(&ids[start..]);
            let sound = if start == 0 { code_points } else { code_points.saturating_add(SPOILT_CHARS_MAX) };
            let long_enough = text.chars().nth(sound).is_some();
            if start == 0 || long_enough {
                text.drain(..tail_start(&text, code_points));
                return text;
            }
            tokens *= 2;
        }
    }

    fn prompt_text(&self, content: &PromptContent) -> Result<String, DataError> {
        match content {
            PromptContent::Messages(messages) => self.render(messages),
            PromptContent::Text(text) => {
                self.render(&[Message { role: "user".to_owned(), content: text.clone() }])
            }
        }
    }

    fn encode_with(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, DataError> {
        let encoding = self.tokenizer.encode_fast(text, add_special_tokens).map_err(refusal)?;
        Ok(encoding.get_ids().to_vec())
    }

    fn decode_with(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        match self.tokenizer.decode(ids, skip_special_tokens) {
            Ok(text) => text,
            Err(error) => {
                // None of the library's decoders fails; the tokens as they stand are still better than
                // nothing.
                tracing::warn!(%error, tokens = ids.len(), "the tokenizer cannot decode a response");
                ids.iter().filter_map(|id| self.tokenizer.id_to_token(*id)).collect()
            }
        }
    }
}

fn load(files: &TokenizerFiles) -> Result<Tokenizer, DataError> {
    let bad = |error: tokenizers::Error| DataError::Tokenizer {
        file: format!("{}/tokenizer.json", files.origin),
        reason: error.to_string(),
    };
    let mut tokenizer = Tokenizer::from_bytes(files.tokenizer.as_bytes()).map_err(bad)?;
    // Some files carry the settings of their last training run, which would cut or fill every prompt.
    tokenizer.with_truncation(None).map_err(bad)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn read_template(file: &Path) -> Result<String, DataError> {
    std::fs::read_to_string(file).map_err(|source| DataError::Read { file: file.to_owned(), source })
}

fn template_tokens(config: &TokenizerConfig) -> TemplateTokens {
    let text = |token: &Option<SpecialToken>| token.as_ref().map_or("", SpecialToken::as_str).to_owned();
    TemplateTokens {
        bos: text(&config.bos_token),
        eos: text(&config.eos_token),
        pad: text(&config.pad_token),
        unk: text(&config.unk_token),
    }
}

fn end_ids(tokenizer: &Tokenizer, files: &TokenizerFiles) -> Vec<u32> {
    let named = files.config.eos_token.as_ref().and_then(|token| tokenizer.token_to_id(token.as_str()));
    let mut ids: Vec<u32> = named.into_iter().chain(files.generation_eos_ids.iter().copied()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn refusal(error: tokenizers::Error) -> DataError {
    DataError::Encode { reason: error.to_string() }
}

/// Where the last `code_points` characters of `text` begin, in bytes.
fn tail_start(text: &str, code_points: usize) -> usize {
    let Some(before) = code_points.checked_sub(1) else { return text.len() };
    text.char_indices().rev().nth(before).map_or(0, |(start, _)| start)
}

#[cfg(test)]
mod tests;
