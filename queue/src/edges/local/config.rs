//! How a queue is served to the processes of a host.

/// How a queue is served to this host.
#[derive(Debug, Clone)]
pub struct LocalServiceConfig {
    /// Bytes of idle regions that are kept for later puts and takes; a quarter of what is in use if that is
    /// more.
    pub idle_bytes_max: usize,
    /// Regions that rows may stay in; the rows of further puts are copied to the server's own memory. Each
    /// region is an open file, so at most a quarter of the files that the process may open are used.
    pub regions_max: usize,
    /// The largest put; bytes.
    pub put_bytes_max: usize,
}

impl Default for LocalServiceConfig {
    fn default() -> Self {
        Self { idle_bytes_max: 256 << 20, regions_max: 4096, put_bytes_max: 1 << 30 }
    }
}
