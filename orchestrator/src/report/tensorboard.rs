//! TensorBoard event files, made from the figures of steps and validations.
//!
//! An event file is a sequence of records. Each record has its length, its bytes, and a checksum of each of
//! these two parts. The bytes are a protocol buffer of the type `tensorboard.Event`. Scalars need only a few
//! of its fields.
//!
//! # Deliberately absent
//! No library is used, because the Rust library for these files has not changed since 2022.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use crc::{CRC_32_ISCSI, Crc};
use serde_json::Value;

use super::figures::{STEPS_FILE, VALIDATIONS_FILE};

/// The folder of event files in a run's directory: the `--logdir` of TensorBoard.
const FOLDER: &str = "tensorboard";
/// TensorBoard reads only files whose names contain this text.
const MARK: &str = "events.out.tfevents.";

const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Top-level names of a line of figures that are not measurements.
const NO_SCALARS: [&str; 5] = ["format", "step", "life", "ended_unix_s", "servers"];

/// The event file of one process of a run. It also has the figures of earlier processes, so a run has only
/// one event file.
#[derive(Debug)]
pub struct EventFile {
    file: File,
    /// The time of the last event in seconds since 1970, for figures without a time.
    time: f64,
}

impl EventFile {
    /// Creates the event file of process number `life` of a run. The process began at `started_s`. The file
    /// has all figures in the run's directory, and replaces earlier event files. Blocks.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    pub fn make(run: &Path, started_s: u64, life: u32) -> io::Result<Self> {
        let folder = run.join(FOLDER);
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(MARK) {
                fs::remove_file(entry.path())?;
            }
        }
        // The file names of later processes sort after those of earlier processes.
        let file = File::create(folder.join(format!("{MARK}{started_s:010}.{life:05}.rolldock")))?;
        let mut made = Self { file, time: started_s as f64 };
        made.write(&version_event(made.time))?;
        for (name, prefix) in [(STEPS_FILE, None), (VALIDATIONS_FILE, Some("validation"))] {
            let figures = match File::open(run.join(name)) {
                Ok(figures) => figures,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for line in BufReader::new(figures).lines() {
                made.add(prefix, &serde_json::from_str(&line?)?)?;
            }
        }
        Ok(made)
    }

    /// Adds the numbers of a line of figures. The tag of a number is `prefix` followed by the number's name,
    /// with `/` between the parts. Blocks.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    pub fn add(&mut self, prefix: Option<&str>, figures: &Value) -> io::Result<()> {
        let mut scalars = Vec::new();
        for (name, value) in figures.as_object().into_iter().flatten() {
            if !NO_SCALARS.contains(&name.as_str()) {
                let tag = prefix.map_or_else(|| name.clone(), |prefix| format!("{prefix}/{name}"));
                gather(tag, value, &mut scalars);
            }
        }
        self.time = figures["ended_unix_s"].as_f64().unwrap_or(self.time);
        self.write(&scalars_event(self.time, figures["step"].as_u64().unwrap_or_default(), &scalars))
    }

    /// Writes a complete record.
    fn write(&mut self, event: &[u8]) -> io::Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(event.len() + 16);
        record.extend_from_slice(&length);
        record.extend_from_slice(&masked_crc(&length).to_le_bytes());
        record.extend_from_slice(event);
        record.extend_from_slice(&masked_crc(event).to_le_bytes());
        self.file.write_all(&record)
    }
}

/// Adds all numbers at `tag` and below to `scalars`.
fn gather(tag: String, value: &Value, scalars: &mut Vec<(String, f64)>) {
    match value {
        Value::Number(number) => scalars.extend(number.as_f64().map(|number| (tag, number))),
        Value::Object(inner) => {
            for (name, value) in inner {
                gather(format!("{tag}/{name}"), value, scalars);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
    }
}

/// The checksum of a record: CRC-32C, rotated by 15 bits, plus a constant.
fn masked_crc(bytes: &[u8]) -> u32 {
    CRC32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// `Event { wall_time = 1, file_version = 3 }`, the first record of a file.
fn version_event(time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    put_double(&mut event, 1, time);
    put_bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// `Event { wall_time = 1, step = 2, summary = 5 }` with `Summary { repeated Value value = 1 }` and
/// `Value { tag = 1, simple_value = 2 }`.
fn scalars_event(time: f64, step: u64, scalars: &[(String, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, number) in scalars {
        let mut value = Vec::new();
        put_bytes(&mut value, 1, tag.as_bytes());
        put_key(&mut value, 2, WireType::FourBytes);
        value.extend_from_slice(&(*number as f32).to_le_bytes());
        put_bytes(&mut summary, 1, &value);
    }
    let mut event = Vec::new();
    put_double(&mut event, 1, time);
    put_key(&mut event, 2, WireType::Varint);
    put_varint(&mut event, step);
    put_bytes(&mut event, 5, &summary);
    event
}

/// How the value of a field is encoded.
#[derive(Clone, Copy)]
enum WireType {
    Varint = 0,
    EightBytes = 1,
    Bytes = 2,
    FourBytes = 5,
}

fn put_key(message: &mut Vec<u8>, field: u64, wire: WireType) {
    put_varint(message, (field << 3) | wire as u64);
}

fn put_double(message: &mut Vec<u8>, field: u64, number: f64) {
    put_key(message, field, WireType::EightBytes);
    message.extend_from_slice(&number.to_le_bytes());
}

fn put_bytes(message: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_key(message, field, WireType::Bytes);
    put_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

fn put_varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}
