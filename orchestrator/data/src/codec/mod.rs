//! Converts text to token ids and back, as the model's servers do.
//!
//! The rollout works with ids; text is for people and rewards. The decoded text of a response is never
//! encoded again, because this can give other ids.
//!
//! # Invariants
//! - [`TextCodec::decode_tail`] returns exactly the last characters of the text that [`TextCodec::decode`]
//!   returns.
//! - A prompt's ids do not depend on the clock, or on settings for truncation and padding in a tokenizer's
//!   file.

use std::path::{Path, PathBuf};

use tokenizers::{DecoderWrapper, Tokenizer};

mod chat;
mod files;
mod template;

use crate::{DataError, Message, PromptContent};
use files::{SpecialToken, TokenizerConfig, TokenizerFiles};
use template::{ChatTemplate, TemplateTokens};

/// Maximum number of wrong characters at the start of a tail that begins within a character. A UTF-8
/// character has at most three bytes after its first byte. If the first byte is missing, each of the others
/// is decoded as a separate wrong character.
const SPOILT_CHARS_MAX: usize = 3;

/// The number of ids by which a model's vocabulary may be larger than that of its tokenizer, if the model's own number
/// is unknown. The largest padding of a published model that is known here is 2,385 ids (102,400 ids for a tokenizer
/// with 100,015). A bound that is too large only misses some broken ids, but one that is too small would refuse the
/// answers of healthy servers.
const PADDING_MAX: u32 = 1 << 14;

/// Configuration for [`TextCodec::open`].
#[derive(Debug, Clone)]
pub struct CodecConfig {
    /// A folder, a `tokenizer.json`, a hub id in the local cache, or `builtin`.
    pub tokenizer: String,
    /// The chat template for prompts.
    pub chat_template: TemplateChoice,
    /// The time that templates with a date print, in seconds since 1970. Without it such a template fails.
    pub unix_seconds: Option<i64>,
}

/// The source of the chat template.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TemplateChoice {
    /// The tokenizer's own template. If the tokenizer has no template, prompts stay raw.
    #[default]
    Auto,
    /// No template: a prompt is the contents of its messages, joined by line feeds.
    Raw,
    /// A template in a Jinja file.
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
    /// The text that was encoded.
    pub text: String,
    /// The token ids of the text.
    pub ids: Vec<u32>,
}

/// A tokenizer with its chat template. Threads can share it: every method takes `&self`.
pub struct TextCodec {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    origin: String,
    eos_ids: Vec<u32>,
    vocab_size: u32,
    vocab_size_max: u32,
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
    /// Reads a tokenizer and its chat template. Blocks, for about a second if the tokenizer is large.
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
            vocab_size_max: match files.model_vocab_size {
                Some(of_model) => of_model.max(vocab_size),
                None => vocab_size.saturating_add(PADDING_MAX),
            },
            tokenizer,
            template,
            origin: files.origin,
        })
    }

    /// The embedded tokenizer with its own template. It has about 3,400 tokens, and each digit is a token.
    pub fn builtin() -> Result<Self, DataError> {
        Self::open(&CodecConfig {
            tokenizer: "builtin".to_owned(),
            chat_template: TemplateChoice::Auto,
            unix_seconds: None,
        })
    }

    /// The origin of the tokenizer: a folder or `builtin`.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Whether there is a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The largest id plus one. A server with a smaller vocabulary runs another model.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// An upper bound for the vocabulary of a model with this tokenizer: no engine samples an id at or above it, unless
    /// the engine is broken.
    ///
    /// A model may have more ids than its tokenizer, because embeddings are padded, and engines do not mask the padding.
    /// Engines do mask ids from `vocab_size` of the model's `config.json` on. If this file is not beside the tokenizer,
    /// the bound leaves room for the padding.
    pub fn vocab_size_max(&self) -> u32 {
        self.vocab_size_max
    }

    /// Ids that end a response, in ascending order: those of the tokenizer and of `generation_config.json`.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The ids of a text, without special tokens before or after it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.encode_with(text, false)
    }

    /// Renders a conversation as text with the template. Without a template, joins the contents of the
    /// messages by line feeds.
    pub fn render(&self, messages: &[Message]) -> Result<String, DataError> {
        let Some(template) = &self.template else {
            let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
            return Ok(contents.join("\n"));
        };
        template.render(messages)
    }

    /// Encodes a prompt in the form that the engine gets.
    ///
    /// A template writes special tokens itself. For a raw prompt, the tokenizer adds its special tokens, as
    /// servers do.
    pub fn encode_prompt(&self, content: &PromptContent) -> Result<EncodedPrompt, DataError> {
        let text = self.prompt_text(content)?;
        let ids = self.encode_with(&text, self.template.is_none())?;
        Ok(EncodedPrompt { text, ids })
    }

    /// The lengths of prompts in tokens, in the order of `contents`. The work uses all cores.
    pub fn prompt_lengths(&self, contents: &[PromptContent]) -> Result<Vec<usize>, DataError> {
        let texts: Vec<String> =
            contents.iter().map(|content| self.prompt_text(content)).collect::<Result<_, _>>()?;
        let encodings = self.tokenizer.encode_batch_fast(texts, self.template.is_none()).map_err(refusal)?;
        Ok(encodings.iter().map(|encoding| encoding.get_ids().len()).collect())
    }

    /// The text of a response without special tokens. Unknown ids and broken characters are never an error;
    /// the tokenizer decides how they appear.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decode_with(ids, true)
    }

    /// The text of ids with their special tokens.
    pub fn decode_with_specials(&self, ids: &[u32]) -> String {
        self.decode_with(ids, false)
    }

    /// The last `code_points` characters of [`decode`](Self::decode), or all of a shorter text.
    ///
    /// With a byte-level decoder, the text of the last tokens equals the end of the whole text, except for a
    /// few characters at its start. Only the tokens that are needed are decoded. With other decoders all
    /// tokens are decoded.
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
                // No decoder of the library is known to fail. If a decoder fails, the names of the tokens are
                // still useful.
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
    // Some files contain settings for truncation and padding, which would change every prompt.
    tokenizer.with_truncation(None).map_err(bad)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn read_template(file: &Path) -> Result<String, DataError> {
    std::fs::read_to_string(file).map_err(|reason| DataError::Read { file: file.to_owned(), reason })
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

/// The byte offset at which the last `code_points` characters of `text` begin.
fn tail_start(text: &str, code_points: usize) -> usize {
    let Some(before) = code_points.checked_sub(1) else { return text.len() };
    text.char_indices().rev().nth(before).map_or(0, |(start, _)| start)
}

#[cfg(test)]
mod tests;
