//! The location of the payload of some rows, as records contain it.
//!
//! A store describes a chunk in a [`Note`], which the journal does not interpret. Notes of segment files and
//! storage units have their own keys in the record, `location` and `unit`, since they are older than the
//! general format. Notes of other stores are under `note`, with the name of the store.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::store::{ChunkId, ChunkLocation, Note, SEGMENTS, UNITS};

/// The location of the payload of some rows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "Fields")]
pub(crate) struct PayloadRecord {
    pub(crate) chunk: ChunkId,
    /// The note with which the store finds the chunk. It is absent for a chunk in memory.
    pub(crate) note: Option<Note>,
    /// The names of the columns. Their types are in the payload.
    pub(crate) columns: Vec<String>,
    /// The row of the chunk for each row of the record. If empty, row `n` of the record is row `n` of the
    /// chunk.
    pub(crate) chunk_rows: Vec<u32>,
}

impl PayloadRecord {
    /// Whether row `n` of the record is row `n` of the chunk. In this case, `chunk_rows` is not written, so
    /// that the record of a whole put stays short in a rewritten journal.
    fn is_in_order(&self) -> bool {
        self.chunk_rows.iter().zip(0..).all(|(row, at)| *row == at)
    }

    /// Returns the row of the chunk for row `at` of the record.
    pub(crate) fn chunk_row(&self, at: usize) -> u32 {
        self.chunk_rows.get(at).copied().unwrap_or(at as u32)
    }
}

/// A note of a store without its own key in the record.
#[derive(Serialize, Deserialize)]
struct NoteOf<Content> {
    store: String,
    content: Content,
}

#[derive(Deserialize)]
struct Fields {
    chunk: ChunkId,
    #[serde(default)]
    location: Option<ChunkLocation>,
    #[serde(default)]
    unit: Option<Value>,
    #[serde(default)]
    note: Option<NoteOf<Value>>,
    columns: Vec<String>,
    #[serde(default)]
    chunk_rows: Vec<u32>,
}

impl From<Fields> for PayloadRecord {
    fn from(fields: Fields) -> Self {
        let Fields { chunk, location, unit, note, columns, chunk_rows } = fields;
        let located = location.map(|location| Note::new(SEGMENTS, location));
        let note = located
            .or_else(|| unit.map(|content| Note::new(UNITS, content)))
            .or_else(|| note.map(|NoteOf { store, content }| Note::new(store, content)));
        Self { chunk, note, columns, chunk_rows }
    }
}

impl Serialize for PayloadRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { chunk, note, columns, chunk_rows } = self;
        let is_in_order = self.is_in_order();
        let fields = 2 + usize::from(note.is_some()) + usize::from(!is_in_order);
        let mut record = serializer.serialize_struct("PayloadRecord", fields)?;
        record.serialize_field("chunk", chunk)?;
        match note {
            None => {}
            Some(note) if note.store() == SEGMENTS => record.serialize_field("location", note)?,
            Some(note) if note.store() == UNITS => record.serialize_field("unit", note)?,
            Some(note) => {
                let note = NoteOf { store: note.store().to_owned(), content: note };
                record.serialize_field("note", &note)?;
            }
        }
        record.serialize_field("columns", columns)?;
        if !is_in_order {
            record.serialize_field("chunk_rows", chunk_rows)?;
        }
        record.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(note: Option<Note>) -> Value {
        let record =
            PayloadRecord { chunk: ChunkId(7), note, columns: vec!["id".to_owned()], chunk_rows: Vec::new() };
        let text = serde_json::to_string(&record).unwrap();
        let again: PayloadRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(again, record);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn rows_are_written_only_if_they_are_not_the_first_ones_in_order() {
        let text_of = |chunk_rows: Vec<u32>| {
            let columns = vec!["id".to_owned()];
            let record = PayloadRecord { chunk: ChunkId(7), note: None, columns, chunk_rows };
            serde_json::to_value(&record).unwrap()
        };
        assert_eq!(text_of(vec![0, 1, 2]), json!({ "chunk": 7, "columns": ["id"] }));
        assert_eq!(text_of(vec![1, 2])["chunk_rows"], json!([1, 2]));
    }

    #[test]
    fn notes_have_the_keys_that_journals_have_had_and_others_name_their_store() {
        assert_eq!(written(None), json!({ "chunk": 7, "columns": ["id"] }));
        let location = ChunkLocation { segment: 1, offset: 64, length: 10, checksum: 5 };
        let expected = json!({ "segment": 1, "offset": 64, "length": 10, "checksum": 5 });
        assert_eq!(written(Some(Note::new(SEGMENTS, location)))["location"], expected);
        assert_eq!(written(Some(Note::new(UNITS, json!({ "unit": "u" }))))["unit"], json!({ "unit": "u" }));
        let elsewhere = written(Some(Note::new("redis", "key".to_owned())));
        assert_eq!(elsewhere["note"], json!({ "store": "redis", "content": "key" }));
    }
}
