//! The configuration of a server for the processes of its host.

/// The limits of a server for the processes of its host.
#[derive(Debug, Clone)]
pub struct LocalServiceConfig {
    /// The maximum number of bytes of idle regions that are kept for later puts and takes. If a quarter of
    /// the bytes in use is greater, that quarter is the maximum.
    pub idle_bytes_max: usize,
    /// The maximum number of regions in which rows stay. The rows of further puts are copied to the server's
    /// own memory. Each region is an open file, so the maximum is at most a quarter of the files that the
    /// process may open.
    pub regions_max: usize,
    /// The maximum size of a put, in bytes.
    pub put_bytes_max: usize,
}

impl Default for LocalServiceConfig {
    fn default() -> Self {
        Self { idle_bytes_max: 256 << 20, regions_max: 4096, put_bytes_max: 1 << 30 }
    }
}
