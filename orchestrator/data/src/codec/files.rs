//! Finds the files of a tokenizer. They are built in, in a folder, or in the hub's local cache.
//!
//! Deliberately absent: downloads. A run must not depend on a server of the hub, and the hub's own tool
//! handles tokens, mirrors and resumed downloads.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::DataError;

const BUILTIN_TOKENIZER: &str = include_str!("../../../../data/tokenizer/tokenizer.json");
const BUILTIN_CONFIG: &str = include_str!("../../../../data/tokenizer/tokenizer_config.json");

/// The contents of a tokenizer's files.
pub(super) struct TokenizerFiles {
    /// The folder or `builtin`, for messages.
    pub(super) origin: String,
    /// `tokenizer.json`.
    pub(super) tokenizer: String,
    /// The keys of `tokenizer_config.json` that are used.
    pub(super) config: TokenizerConfig,
    /// `chat_template.jinja`. It has precedence over the template in the configuration.
    pub(super) template: Option<String>,
    /// `eos_token_id` of `generation_config.json`.
    pub(super) generation_eos_ids: Vec<u32>,
    /// `vocab_size` of the model's `config.json`.
    pub(super) model_vocab_size: Option<u32>,
}

/// The keys of `tokenizer_config.json` that are used here. Other keys are ignored.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenizerConfig {
    #[serde(default)]
    pub(super) bos_token: Option<SpecialToken>,
    #[serde(default)]
    pub(super) eos_token: Option<SpecialToken>,
    #[serde(default)]
    pub(super) pad_token: Option<SpecialToken>,
    #[serde(default)]
    pub(super) unk_token: Option<SpecialToken>,
    #[serde(default)]
    pub(super) chat_template: Option<ConfiguredTemplate>,
}

/// A special token. Older files represent it as an object.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum SpecialToken {
    Text(String),
    Object { content: String },
}

impl SpecialToken {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Text(content) | Self::Object { content } => content,
        }
    }
}

/// One template, or several named templates. Of several templates, the one named `default` is used.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum ConfiguredTemplate {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedTemplate {
    name: String,
    template: String,
}

impl ConfiguredTemplate {
    pub(super) fn into_default(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(templates) => {
                templates.into_iter().find(|named| named.name == "default").map(|named| named.template)
            }
        }
    }
}

impl TokenizerFiles {
    /// Reads the files of `name`, which is `builtin`, a folder, a `tokenizer.json` or a hub id.
    pub(super) fn locate(name: &str) -> Result<Self, DataError> {
        if name == "builtin" {
            return Ok(Self {
                origin: name.to_owned(),
                tokenizer: BUILTIN_TOKENIZER.to_owned(),
                config: parse("builtin", BUILTIN_CONFIG)?,
                template: None,
                generation_eos_ids: Vec::new(),
                model_vocab_size: None,
            });
        }
        let path = Path::new(name);
        if path.is_dir() {
            return Self::read(path, &path.join("tokenizer.json"));
        }
        if path.is_file() {
            return Self::read(path.parent().unwrap_or(Path::new("")), path);
        }
        let snapshot = cached_snapshot(name)?;
        Self::read(&snapshot, &snapshot.join("tokenizer.json"))
    }

    fn read(folder: &Path, tokenizer_file: &Path) -> Result<Self, DataError> {
        let tokenizer = read_text(tokenizer_file)?.ok_or_else(|| DataError::TokenizerMissing {
            name: folder.display().to_string(),
            reason: "the folder has no tokenizer.json".to_owned(),
        })?;
        let config_file = folder.join("tokenizer_config.json");
        let config = match read_text(&config_file)? {
            Some(text) => parse(&config_file.display().to_string(), &text)?,
            None => TokenizerConfig::default(),
        };
        let generation_file = folder.join("generation_config.json");
        let generation_eos_ids = match read_text(&generation_file)? {
            Some(text) => eos_token_ids(&parse(&generation_file.display().to_string(), &text)?),
            None => Vec::new(),
        };
        let model_vocab_size = read_text(&folder.join("config.json"))?.and_then(|text| vocab_size(&text));
        Ok(Self {
            origin: folder.display().to_string(),
            tokenizer,
            config,
            template: read_text(&folder.join("chat_template.jinja"))?,
            generation_eos_ids,
            model_vocab_size,
        })
    }
}

/// Reads a text file; `None` if it does not exist.
pub(super) fn read_text(file: &Path) -> Result<Option<String>, DataError> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(reason) => Err(DataError::Read { file: file.to_owned(), reason }),
    }
}

fn parse<'json, T: Deserialize<'json>>(file: &str, text: &'json str) -> Result<T, DataError> {
    serde_json::from_str(text)
        .map_err(|error| DataError::Tokenizer { file: file.to_owned(), reason: error.to_string() })
}

/// The ids of `eos_token_id`, which is one id or a list.
fn eos_token_ids(generation_config: &Value) -> Vec<u32> {
    let to_id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match &generation_config["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(to_id).collect(),
        one => to_id(one).into_iter().collect(),
    }
}

/// `vocab_size` of a model's configuration. A model of several modalities has it in the part for text. Some models have
/// the number `Infinity` in this file, which is no JSON, so a file that cannot be read only leaves the size unknown.
fn vocab_size(model_config: &str) -> Option<u32> {
    let model_config: Value = serde_json::from_str(model_config).ok()?;
    let sizes = [&model_config["vocab_size"], &model_config["text_config"]["vocab_size"]];
    sizes.into_iter().find_map(Value::as_u64).and_then(|size| u32::try_from(size).ok())
}

/// The folder of a hub id's files, in the cache layout of the hub's own library.
fn cached_snapshot(name: &str) -> Result<PathBuf, DataError> {
    let missing = |reason: String| DataError::TokenizerMissing { name: name.to_owned(), reason };
    if !is_hub_id(name) {
        return Err(missing(
            "no such folder or file; give a folder, a tokenizer.json, a hub id or \"builtin\"".to_owned(),
        ));
    }
    let Some(cache) = hub_cache() else {
        return Err(missing(
            "no such folder or file, and no HF_HOME or HOME to look for a cache in".to_owned(),
        ));
    };
    let repository = cache.join(format!("models--{}", name.replace('/', "--")));
    let revision = read_text(&repository.join("refs").join("main"))?;
    let snapshot = revision.map(|revision| repository.join("snapshots").join(revision.trim()));
    match snapshot {
        Some(snapshot) if snapshot.join("tokenizer.json").is_file() => Ok(snapshot),
        _ => Err(missing(format!(
            "neither a folder or file nor in the cache {}; fetch it with `hf download {name} tokenizer.json \
             tokenizer_config.json`, or give the folder that has them",
            cache.display()
        ))),
    }
}

/// Whether `name` has the form `organisation/name` or `name` and only characters that the hub allows.
fn is_hub_id(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'))
    };
    let mut parts = name.split('/');
    parts.clone().count() <= 2 && parts.all(is_part)
}

fn hub_cache() -> Option<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("HF_HUB_CACHE")
        .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache").join("huggingface").join("hub")))
}
