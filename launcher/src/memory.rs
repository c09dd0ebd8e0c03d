//! How this process keeps memory. A launcher takes in hundreds of Jobs at a time and lets them go a moment later,
//! for hours; what it has let go must not stay with it, since Jobs need the memory of the node.

/// From this size on a block is a mapping of its own, which goes back at once. glibc would raise it to the
/// size of the largest block that was ever let go.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: i32 = 128 << 10;
/// More than this at the end of the heap goes back.
#[cfg(target_env = "gnu")]
const SPARE_BYTES: i32 = 256 << 10;

/// Keeps the heap small. Only glibc needs to be told.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the allocator can't be told safely")]
pub fn keep_small() {
    for (parameter, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, MAPPED_BYTES), (libc::M_TRIM_THRESHOLD, SPARE_BYTES)]
    {
        // SAFETY: it may be called at any time. Where it fails, more memory is kept.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Keeps the heap small. Only glibc needs to be told.
#[cfg(not(target_env = "gnu"))]
pub fn keep_small() {}
