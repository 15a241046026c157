//! What the probe of a server finds.

/// The API that a server offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// vLLM's `/inference/v1/generate`: tokens in, tokens out, weight versions per span.
    Generate,
    /// `/v1/completions` with vLLM's token ids: no weight versions.
    Completions,
    /// `/v1/completions` of a plain server: text, without token ids and log-probabilities.
    TextOnly,
}

impl Dialect {
    /// The dialect's name for logs and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Completions => "completions",
            Self::TextOnly => "text_only",
        }
    }

    /// Tokens that the probe asks for which finds a server of this dialect.
    pub(super) fn probe_tokens(self) -> u64 {
        match self {
            Self::Generate => 0,
            Self::Completions | Self::TextOnly => 1,
        }
    }
}

/// What the probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The API that it offers.
    pub dialect: Dialect,
    /// The model that was asked for and is served.
    pub model: String,
    /// Maximum number of tokens of prompt and response together, if the server reports it.
    pub max_model_len: Option<u32>,
    /// The engine's version, if the server reports it.
    pub version: Option<String>,
}
