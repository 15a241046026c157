//! What the probe of a server finds.

/// What a server speaks.
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
    /// For logs and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Completions => "completions",
            Self::TextOnly => "text_only",
        }
    }
}

/// What the probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// What it speaks.
    pub dialect: Dialect,
    /// The model that was asked for and is served.
    pub model: String,
    /// Maximum number of tokens of prompt and response together, where the server says so.
    pub max_model_len: Option<u32>,
    /// The engine's version, where the server says so.
    pub version: Option<String>,
}
