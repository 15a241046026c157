//! How a queue is served to the processes of a host.

/// How a queue is served to this host.
#[derive(Debug, Clone)]
pub struct LocalServiceConfig {
    /// The most bytes of idle regions that are kept for later puts and takes. If a quarter of the bytes in
    /// use is more, that many are kept.
    pub idle_bytes_max: usize,
    /// The most regions in which rows stay; the rows of further puts are copied to the server's own memory.
    /// Each region is an open file, so the server uses a quarter of the files that the process may open if
    /// that is less.
    pub regions_max: usize,
    /// The largest put; bytes.
    pub put_bytes_max: usize,
}

impl Default for LocalServiceConfig {
    fn default() -> Self {
        Self { idle_bytes_max: 256 << 20, regions_max: 4096, put_bytes_max: 1 << 30 }
    }
}
