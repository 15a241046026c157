//! Reading a framed file from start to end.

use std::io::{Error, Read, Seek, SeekFrom};

use super::{Damage, Format, HEAD_BYTES};

/// The reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The source failed.
    #[error("the file cannot be read: {0}")]
    Io(#[from] Error),
    /// The file does not begin with the magic bytes of its format.
    #[error("the file begins with other bytes than its format's")]
    OtherFormat,
    /// A frame is damaged, and the damage is not the torn tail of a crash.
    #[error("the file is damaged at offset={offset}: {damage}")]
    Damaged {
        /// The offset of the frame from the start of the file, in bytes.
        offset: u64,
        /// The part that does not match.
        damage: Damage,
    },
}

/// A sound frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The offset of the frame from the start of the file, in bytes.
    pub offset: u64,
    /// The body, which is never empty.
    pub body: &'a [u8],
}

/// Reads the frames of one file. Only one body is in memory at a time.
///
/// The reader reads only the given length of the file, so another process may append in the meantime.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    format: Format,
    /// The length of the file in bytes.
    length: u64,
    /// The length of the sound part that was read so far, in bytes.
    sound: u64,
    has_ended: bool,
    /// The body of the last frame.
    body: Vec<u8>,
}

/// The next part of the source. The body of a sound frame is stored in the reader.
enum Next {
    Frame,
    Cut,
    Damaged(Damage),
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the magic bytes of a file of `length` bytes. A file that ends within the magic bytes has no
    /// frames.
    ///
    /// # Errors
    /// Returns [`ReadError::OtherFormat`] if the file begins with other bytes, and [`ReadError::Io`] if the
    /// source fails.
    pub fn new(mut source: R, length: u64, format: Format) -> Result<Self, ReadError> {
        let magic_bytes = format.magic.len() as u64;
        let mut magic = vec![0; magic_bytes.min(length) as usize];
        source.read_exact(&mut magic)?;
        if !format.magic.starts_with(&magic) {
            return Err(ReadError::OtherFormat);
        }
        let is_cut = length < magic_bytes;
        let sound = if is_cut { 0 } else { magic_bytes };
        Ok(Self { source, format, length, sound, has_ended: is_cut, body: Vec::new() })
    }

    /// Reads the next frame. Returns `None` after the last sound frame, which a torn tail may follow.
    ///
    /// # Errors
    /// Returns [`ReadError::Damaged`] for damage other than a torn tail, and [`ReadError::Io`] if the source
    /// fails.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, ReadError> {
        if self.has_ended {
            return Ok(None);
        }
        let offset = self.sound;
        match self.read_next()? {
            Next::Frame => {}
            Next::Cut => {
                self.has_ended = true;
                return Ok(None);
            }
            Next::Damaged(damage) => {
                self.has_ended = true;
                self.refuse_unless_torn(damage)?;
                return Ok(None);
            }
        }
        self.sound += (HEAD_BYTES + self.body.len()) as u64;
        Ok(Some(Frame { offset, body: &self.body }))
    }

    fn read_next(&mut self) -> Result<Next, ReadError> {
        let left = self.length - self.sound;
        if left < HEAD_BYTES as u64 {
            return Ok(Next::Cut);
        }
        let mut head = [0; HEAD_BYTES];
        self.source.read_exact(&mut head)?;
        let Some(head) = self.format.head(&head) else { return Ok(Next::Damaged(Damage::Head)) };
        if left - (HEAD_BYTES as u64) < u64::from(head.body_bytes()) {
            return Ok(Next::Cut);
        }
        self.body.resize(head.body_bytes() as usize, 0);
        self.source.read_exact(&mut self.body)?;
        Ok(if head.matches(&self.body) { Next::Frame } else { Next::Damaged(Damage::Body) })
    }

    /// Refuses damage that the last write cannot have left: damage before a sound frame, or more bytes than a
    /// crash can leave.
    fn refuse_unless_torn(&mut self, damage: Damage) -> Result<(), ReadError> {
        let (offset, left) = (self.sound, self.length - self.sound);
        let refused = ReadError::Damaged { offset, damage };
        if left > self.format.tail_bytes_max {
            return Err(refused);
        }
        let mut rest = Vec::new();
        self.source.seek(SeekFrom::Start(offset + 1))?;
        (&mut self.source).take(left - 1).read_to_end(&mut rest)?;
        if self.format.has_sound_frame(&rest) { Err(refused) } else { Ok(()) }
    }

    /// The length of the sound part that was read so far, which is the offset of the next frame. It is 0 if
    /// the magic bytes are incomplete.
    pub fn sound_bytes(&self) -> u64 {
        self.sound
    }

    /// The number of bytes after the sound part that was read so far.
    pub fn torn_bytes(&self) -> u64 {
        self.length - self.sound
    }
}
