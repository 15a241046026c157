//! Tokens of groups that continue in a later dispatch. Each step has one file of them, `tokens-<step>.bin`.
//!
//! A group is one block: the length and the CRC-32 of its body, each in 4 bytes little-endian, then the body.
//! The log stores the location of each block. Bytes that a crash leaves after the last block are therefore
//! never read.
//!
//! A held group is stored in the same way, with all of its samples finished. Its scores are not stored: it is
//! graded again after a restart, because a reward is a function of the text.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rolldock_dispatch::{CarriedSample, DispatchId, FinishReason, Spent, VersionSpan};
use rolldock_frames::descriptors;

use super::codec::{Decoder, Encoder, Expected};
use super::{LedgerError, TokensPlace};

const HEAD: usize = 8;
/// Maximum number of samples of a group, and of version spans of a sample. Groups of a run have fewer.
const SAMPLES_MAX: u64 = 1 << 16;
const SPANS_MAX: u64 = 1 << 20;
/// Maximum bytes of one group.
const GROUP_BYTES_MAX: usize = 1 << 30;

/// The samples of a group that was cut off or is held.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptGroup {
    /// The group's position in dispatch order.
    pub number: u64,
    /// The dispatch that generated the samples. It is the parent of the next dispatch.
    pub parent: DispatchId,
    /// The samples, in order of their index. Samples without tokens may be absent.
    pub samples: Vec<CarriedSample>,
}

impl KeptGroup {
    /// Whether the group has all of its `samples` samples and all of them have ended, as in a held group.
    pub fn is_finished(&self, samples: usize) -> bool {
        self.samples.len() == samples && self.samples.iter().all(|sample| sample.finish_reason.is_some())
    }

    /// Response tokens of all samples.
    pub fn tokens(&self) -> u64 {
        self.samples.iter().map(|sample| u64::from(sample.tokens())).sum()
    }

    /// Approximate size in memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let of_sample =
            |sample: &CarriedSample| 128 + 4 * (sample.response_ids.len() + sample.logprobs.len());
        64 + self.samples.iter().map(of_sample).sum::<usize>()
    }

    fn encode(&self) -> Vec<u8> {
        let mut into = Encoder(Vec::with_capacity(self.bytes()));
        into.number(self.number);
        into.number(self.parent.0);
        into.number(self.samples.len() as u64);
        self.samples.iter().for_each(|sample| encode_sample(sample, &mut into));
        into.0
    }

    fn decode(body: &[u8]) -> Result<Self, Expected> {
        let mut from = Decoder(body);
        let (number, parent) = (from.number()?, DispatchId(from.number()?));
        let count = from.number()?;
        if count > SAMPLES_MAX {
            return Err("at most 65536 samples");
        }
        let samples = (0..count).map(|_| decode_sample(&mut from)).collect::<Result<_, _>>()?;
        if !from.is_empty() {
            return Err("the end of a group");
        }
        Ok(Self { number, parent, samples })
    }
}

fn encode_sample(sample: &CarriedSample, into: &mut Encoder) {
    into.number(u64::from(sample.index));
    into.number(u64::from(sample.attempt));
    into.number(u64::from(sample.segments));
    into.byte(match sample.finish_reason {
        None => 0,
        Some(FinishReason::Stop) => 1,
        Some(FinishReason::Length) => 2,
    });
    into.number(sample.policy_version_min);
    into.number(sample.policy_version_max);
    into.byte(u8::from(sample.versions_reported));
    into.number(sample.response_ids.len() as u64);
    sample.response_ids.iter().for_each(|id| into.0.extend_from_slice(&id.to_le_bytes()));
    into.number(sample.logprobs.len() as u64);
    sample.logprobs.iter().for_each(|logprob| into.0.extend_from_slice(&logprob.to_le_bytes()));
    into.number(sample.version_spans.len() as u64);
    for span in &sample.version_spans {
        into.text(&span.version);
        into.number(u64::from(span.start));
        into.number(u64::from(span.end));
    }
}

fn decode_sample(from: &mut Decoder<'_>) -> Result<CarriedSample, Expected> {
    let (index, attempt, segments) = (from.number_u32()?, from.number_u32()?, from.number_u32()?);
    let finish_reason = match from.byte()? {
        0 => None,
        1 => Some(FinishReason::Stop),
        2 => Some(FinishReason::Length),
        _ => return Err("a known reason for the end of a sample"),
    };
    let (policy_version_min, policy_version_max) = (from.number()?, from.number()?);
    let versions_reported = from.byte()? != 0;
    let response_ids = words(from)?.map(u32::from_le_bytes).collect();
    let logprobs = words(from)?.map(f32::from_le_bytes).collect();
    let spans = from.number()?;
    if spans > SPANS_MAX {
        return Err("at most 1048576 version spans");
    }
    let version_spans = (0..spans)
        .map(|_| {
            let version: Arc<str> = from.text()?.into();
            Ok(VersionSpan { version, start: from.number_u32()?, end: from.number_u32()? })
        })
        .collect::<Result<_, Expected>>()?;
    Ok(CarriedSample {
        index,
        attempt,
        segments,
        response_ids,
        logprobs,
        version_spans,
        policy_version_min,
        policy_version_max,
        versions_reported,
        finish_reason,
        spent: Spent::default(),
    })
}

/// Reads the number of values, then the values of four bytes each.
fn words<'a>(from: &mut Decoder<'a>) -> Result<impl Iterator<Item = [u8; 4]> + 'a, Expected> {
    let count = usize::try_from(from.number()?).map_err(|_| "a number of tokens")?;
    let bytes = from.bytes(count.checked_mul(4).ok_or("a number of tokens")?)?;
    Ok(bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]))
}

fn tokens_name(step: u64) -> String {
    format!("tokens-{step}.bin")
}

fn tokens_file(dir: &Path, step: u64) -> PathBuf {
    dir.join(tokens_name(step))
}

/// The step in the name of a file of tokens.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("tokens-")?.strip_suffix(".bin")?.parse().ok()
}

/// Reads a group back. Blocks.
///
/// # Errors
/// [`LedgerError::Io`] if the file is missing or too short, [`LedgerError::Corrupt`] if it has other
/// contents.
pub fn read_carried(dir: &Path, place: TokensPlace) -> Result<KeptGroup, LedgerError> {
    let path = tokens_file(dir, place.file);
    let corrupt = |found: &str, expected| LedgerError::Corrupt {
        file: path.clone(),
        offset: place.offset,
        found: found.to_owned(),
        expected,
    };
    if place.length as usize > GROUP_BYTES_MAX {
        return Err(corrupt("a larger length", "a group of at most 1 GiB"));
    }
    let file = descriptors::open(|| File::open(&path)).map_err(LedgerError::io("open", &path))?;
    let mut head = [0_u8; HEAD];
    file.read_exact_at(&mut head, place.offset).map_err(LedgerError::io("read", &path))?;
    let [a, b, c, d, ..] = head;
    if u32::from_le_bytes([a, b, c, d]) != place.length {
        return Err(corrupt("another length", "the length that the log names"));
    }
    let mut body = vec![0; place.length as usize];
    file.read_exact_at(&mut body, place.offset + HEAD as u64).map_err(LedgerError::io("read", &path))?;
    if block_head(&body) != head {
        return Err(corrupt("a checksum that does not match", "the tokens that were written"));
    }
    KeptGroup::decode(&body).map_err(|expected| corrupt("a group that cannot be read", expected))
}

fn block_head(body: &[u8]) -> [u8; HEAD] {
    let mut head = [0_u8; HEAD];
    head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    head
}

/// The file that is being written.
#[derive(Debug)]
struct OpenFile {
    step: u64,
    path: PathBuf,
    file: File,
    length: u64,
    has_unsynced: bool,
}

/// Writes and deletes the files of tokens.
#[derive(Debug)]
pub(super) struct TokenFiles {
    dir: PathBuf,
    /// The open directory, so that a sync needs no descriptor.
    dir_file: File,
    open: Option<OpenFile>,
    /// Existing files, by step.
    there: BTreeSet<u64>,
}

impl TokenFiles {
    /// Opens the files of tokens of a directory.
    pub(super) fn open(dir: &Path) -> Result<Self, LedgerError> {
        let mut there = BTreeSet::new();
        for entry in std::fs::read_dir(dir).map_err(LedgerError::io("list", dir))? {
            let entry = entry.map_err(LedgerError::io("list", dir))?;
            there.extend(entry.file_name().to_str().and_then(step_of));
        }
        let dir_file = File::open(dir).map_err(LedgerError::io("open", dir))?;
        Ok(Self { dir: dir.to_owned(), dir_file, open: None, there })
    }

    /// The name of an existing file, if there is one.
    pub(super) fn any(&self) -> Option<String> {
        self.there.first().map(|step| tokens_name(*step))
    }

    /// Appends a group to the file of `step`.
    pub(super) fn append(&mut self, step: u64, group: &KeptGroup) -> Result<TokensPlace, LedgerError> {
        let body = group.encode();
        let open = self.file_of(step)?;
        if body.len() > GROUP_BYTES_MAX {
            let reason = format!("a group of {} bytes is too large", body.len());
            return Err(LedgerError::Io { action: "write", file: open.path.clone(), reason });
        }
        let place = TokensPlace { file: step, offset: open.length, length: body.len() as u32 };
        let written = open.file.write_all_at(&block_head(&body), open.length);
        let written = written.and_then(|()| open.file.write_all_at(&body, open.length + HEAD as u64));
        written.map_err(LedgerError::io("write", &open.path))?;
        open.length += (HEAD + body.len()) as u64;
        open.has_unsynced = true;
        Ok(place)
    }

    fn file_of(&mut self, step: u64) -> Result<&mut OpenFile, LedgerError> {
        if self.open.as_ref().is_some_and(|open| open.step != step) {
            self.sync()?;
            self.open = None;
        }
        if self.open.is_none() {
            let path = tokens_file(&self.dir, step);
            let options = OpenOptions::new().create(true).truncate(false).write(true).clone();
            let opened = descriptors::open(|| options.open(&path));
            let file = opened.map_err(LedgerError::io("open", &path))?;
            // New blocks are appended to the blocks of earlier lives.
            let length = file.metadata().map_err(LedgerError::io("read", &path))?.len();
            self.there.insert(step);
            self.open = Some(OpenFile { step, path, file, length, has_unsynced: false });
        }
        self.open.as_mut().ok_or(LedgerError::Closed)
    }

    /// Syncs the appended blocks, and the directory with the files' names.
    pub(super) fn sync(&mut self) -> Result<(), LedgerError> {
        let Some(open) = self.open.as_mut().filter(|open| open.has_unsynced) else { return Ok(()) };
        open.file.sync_data().map_err(LedgerError::io("sync", &open.path))?;
        self.dir_file.sync_all().map_err(LedgerError::io("sync", &self.dir))?;
        open.has_unsynced = false;
        Ok(())
    }

    /// Deletes files of steps before `step` that are not in use. If a file cannot be deleted, this is logged,
    /// and the file stays.
    pub(super) fn delete_unused(&mut self, step: u64, is_used: impl Fn(u64) -> bool) {
        let unused: Vec<u64> = self.there.range(..step).copied().filter(|file| !is_used(*file)).collect();
        for file in unused {
            self.there.remove(&file);
            let path = tokens_file(&self.dir, file);
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(file = %path.display(), %error, "cannot delete tokens that are no longer needed");
            }
        }
    }
}

#[cfg(test)]
mod tests;
