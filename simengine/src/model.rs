//! The constants of a server's engine, as a calibration measures them.

use serde::{Deserialize, Serialize};

use crate::ServerConfig;

/// The part of a server's configuration that a calibration of a real server measures. Each field is
/// documented at [`ServerConfig`]. A field that is absent keeps the default of the configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineModel {
    /// See [`ServerConfig::prefill_ns_per_token`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_ns_per_token: Option<u64>,
    /// See [`ServerConfig::decode_base_ns`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_base_ns: Option<u64>,
    /// See [`ServerConfig::decode_ns_per_seq`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_ns_per_seq: Option<u64>,
    /// See [`ServerConfig::decode_ns_per_kv_token`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_ns_per_kv_token: Option<u64>,
    /// See [`ServerConfig::kv_blocks`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_blocks: Option<u32>,
    /// See [`ServerConfig::block_tokens`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_tokens: Option<u32>,
    /// See [`ServerConfig::max_model_len`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
}

impl EngineModel {
    /// The configuration with the constants of this model.
    pub fn configure(&self, config: ServerConfig) -> ServerConfig {
        ServerConfig {
            prefill_ns_per_token: self.prefill_ns_per_token.unwrap_or(config.prefill_ns_per_token),
            decode_base_ns: self.decode_base_ns.unwrap_or(config.decode_base_ns),
            decode_ns_per_seq: self.decode_ns_per_seq.unwrap_or(config.decode_ns_per_seq),
            decode_ns_per_kv_token: self.decode_ns_per_kv_token.unwrap_or(config.decode_ns_per_kv_token),
            kv_blocks: self.kv_blocks.unwrap_or(config.kv_blocks),
            block_tokens: self.block_tokens.unwrap_or(config.block_tokens),
            max_model_len: self.max_model_len.unwrap_or(config.max_model_len),
            ..config
        }
    }
}
