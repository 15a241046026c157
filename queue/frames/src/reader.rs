//! Reads a framed file from front to back.

use std::io::{Error, Read, Seek, SeekFrom};

use super::{Damage, Format, HEAD_BYTES};

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The source failed.
    #[error("the file cannot be read: {0}")]
    Io(#[from] Error),
    /// The file does not begin with the magic bytes of its format.
    #[error("the file begins with other bytes than its format's")]
    OtherFormat,
    /// A frame is damaged, and what follows shows that it was whole once.
    #[error("the file is damaged at offset={offset}: {damage}")]
    Damaged {
        /// Where the frame begins; bytes from the start of the file.
        offset: u64,
        /// What does not match.
        damage: Damage,
    },
}

/// A sound frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Where the frame begins; bytes from the start of the file.
    pub offset: u64,
    /// What it holds; never empty.
    pub body: &'a [u8],
}

/// Reads the frames of one file, one at a time: only one body is in memory.
///
/// It reads as much as the file had at the beginning, so another process may append meanwhile.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    format: Format,
    /// Bytes of the file.
    length: u64,
    /// Bytes of its sound part, as far as it is read.
    sound: u64,
    has_ended: bool,
    /// The body that was read last.
    body: Vec<u8>,
}

/// What the source has next; a sound frame's body is in the reader.
enum Next {
    Frame,
    Cut,
    Damaged(Damage),
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the magic bytes of a file of `length` bytes. A file that ends within them has no frames.
    ///
    /// # Errors
    /// [`ReadError::OtherFormat`] if the file begins otherwise, and [`ReadError::Io`].
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

    /// The next frame; `None` behind the last sound one, where a torn tail may follow.
    ///
    /// # Errors
    /// [`ReadError::Damaged`] for damage that is no torn tail, and [`ReadError::Io`].
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

    /// Damage that a sound frame follows was not left by the last write, and neither was more than a crash
    /// can leave.
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

    /// Bytes of the sound part so far: where the next frame begins. 0 if not even the magic bytes are whole.
    pub fn sound_bytes(&self) -> u64 {
        self.sound
    }

    /// Bytes behind the sound part so far.
    pub fn torn_bytes(&self) -> u64 {
        self.length - self.sound
    }
}
