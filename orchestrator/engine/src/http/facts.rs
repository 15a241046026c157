//! The facts that the probe finds out about a server.

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

    /// Number of tokens that the last request of a probe generates on a server of this dialect.
    pub(super) fn probe_tokens(self) -> u64 {
        match self {
            Self::Generate => 0,
            Self::Completions | Self::TextOnly => 1,
        }
    }
}

/// The facts about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The API that the server offers.
    pub dialect: Dialect,
    /// The recipe's model, which the server offers.
    pub model: String,
    /// Maximum number of tokens of prompt and response together, if the server reports it.
    pub max_model_len: Option<u32>,
    /// The engine's version, if the server reports it.
    pub version: Option<String>,
}
