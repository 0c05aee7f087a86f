// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file that a probe names: a path, a program in PATH, or a library in the loader's folders.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::elf::{text_at, ElfFile};

/// The loader's list of libraries (`ldconfig` writes it).
const LOADER_CACHE: &str = "/etc/ld.so.cache";
/// First bytes of that list. In older files a list of another form comes before it.
const CACHE_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Where the loader looks for libraries that are not in the list.
const LIBRARY_FOLDERS: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Finds the file of a name without `/`: an executable in PATH, a library in LD_LIBRARY_PATH or the
/// loader's list, or a file in the current folder. A name with `/` is the path itself.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(name.into());
    }
    in_path(name)
        .or_else(|| library(name))
        .or_else(|| Some(PathBuf::from(name)).filter(|file| file.is_file()))
        // With `/`, so that no further search follows.
        .map(|file| Path::new(".").join(file))
}

fn folders_of(variable: &str) -> Vec<PathBuf> {
    let value = env::var_os(variable).unwrap_or_default();
    let folders = env::split_paths(&value);
    folders
        .filter(|folder| !folder.as_os_str().is_empty())
        .collect()
}

fn in_path(name: &str) -> Option<PathBuf> {
    let may_run = |file: &PathBuf| {
        let metadata = fs::metadata(file);
        metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    let folders = folders_of("PATH").into_iter();
    folders.map(|folder| folder.join(name)).find(may_run)
}

/// The first library of this name in the loader's list that this process could load. The list may
/// also have libraries for other machines.
fn library(name: &str) -> Option<PathBuf> {
    let own = ElfFile::open(Path::new("/proc/self/exe")).ok()?;
    let listed = fs::read(LOADER_CACHE).map(|cache| listed(&cache, name));
    let folders = folders_of("LD_LIBRARY_PATH").into_iter();
    let known = folders.map(|folder| folder.join(name));
    let last = LIBRARY_FOLDERS.map(|folder| Path::new(folder).join(name));
    let mut all = known.chain(listed.unwrap_or_default()).chain(last);
    all.find(|file| ElfFile::open(file).is_ok_and(|elf| elf.is_like(&own)))
}

/// The paths that the loader's list has for a library.
fn listed(cache: &[u8], name: &str) -> Vec<PathBuf> {
    /// Magic, two counts of 4 bytes, 20 bytes of other things.
    const HEAD: usize = 48;
    /// Flags, offset of the name, offset of the path, two more numbers.
    const ENTRY: usize = 24;
    let begin = cache
        .windows(CACHE_MAGIC.len())
        .position(|window| window == CACHE_MAGIC);
    // The part before this has another form; offsets count from here.
    let Some(cache) = begin.and_then(|begin| cache.get(begin..)) else {
        return Vec::new();
    };
    let word = |at: usize| {
        let bytes = cache.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let count = word(CACHE_MAGIC.len()).unwrap_or(0);
    let count = count.min(cache.len() / ENTRY);
    let entries = (0..count).map(|index| HEAD + index * ENTRY);
    let paths = entries.filter_map(|at| {
        let (key, value) = (word(at + 4)?, word(at + 8)?);
        (text_at(cache, key) == name).then(|| PathBuf::from(text_at(cache, value)))
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::{find, listed, CACHE_MAGIC};

    #[test]
    fn programs_and_libraries_are_found_by_their_names() {
        let shell = find("sh").unwrap();
        assert!(shell.is_file() && shell.is_absolute(), "{shell:?}");
        let library = find("libc.so.6").unwrap();
        assert!(library.ends_with("libc.so.6"), "{library:?}");
        assert_eq!(find("there-is-no-such-file"), None);
        let named = find("./there-is-no-such-file").unwrap();
        assert_eq!(named.to_str(), Some("./there-is-no-such-file"));
    }

    #[test]
    fn loader_list_is_read_and_nonsense_survived() {
        let texts = b"libx.so\0/lib/libx.so\0/old/libx.so\0";
        let at = (48 + 2 * 24) as u32;
        let mut cache = CACHE_MAGIC.to_vec();
        cache.extend(
            [2_u32, texts.len() as u32]
                .iter()
                .flat_map(|it| it.to_ne_bytes()),
        );
        cache.extend([0; 20]);
        for value in [8, 21] {
            let entry = [3, at, at + value, 0, 0, 0];
            cache.extend(entry.iter().flat_map(|word| word.to_ne_bytes()));
        }
        cache.extend(texts);
        let found = |cache: &[u8]| listed(cache, "libx.so");
        let expected = ["/lib/libx.so", "/old/libx.so"].map(std::path::PathBuf::from);
        assert_eq!(found(&cache), expected);
        assert_eq!(
            found(&[b"ld.so-1.7.0\0".to_vec(), cache.clone()].concat()),
            expected
        );
        for end in 0..cache.len() {
            let _ = found(&cache[..end]);
        }
        cache[20..24].fill(0xff);
        let _ = found(&cache);
    }
}
