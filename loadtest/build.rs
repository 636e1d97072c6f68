//! The page as `make` built it, or nothing: cargo alone never needs Node.

#![allow(clippy::print_stdout, reason = "cargo reads it")]

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=page");
    println!("cargo:rerun-if-changed=build.rs");
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("page");
    let mut files = Vec::new();
    if root.is_dir() {
        gather(&root, &root, &mut files)?;
    }
    files.sort();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let mut code = String::from("pub(super) const FILES: &[File] = &[\n");
    for (n, path) in files.iter().enumerate() {
        // Kept aside: the next build of the page takes its files away, maybe while this one is compiled.
        let kept = |name: String, bytes: &[u8]| {
            std::fs::write(out.join(&name), bytes)?;
            std::io::Result::Ok(format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\"))"))
        };
        let bytes = std::fs::read(root.join(path))?;
        let mut hash = DefaultHasher::new();
        bytes.hash(&mut hash);
        let plain = kept(format!("page-{n}"), &bytes)?;
        let gzip = match std::fs::read(root.join(format!("{path}.gz"))) {
            Ok(packed) => format!("Some({})", kept(format!("page-{n}.gz"), &packed)?),
            Err(_) => "None".to_owned(),
        };
        let _ = writeln!(
            code,
            "    File {{ path: {path:?}, bytes: {plain}, gzip: {gzip}, etag: \"W/\\\"{:016x}\\\"\" }},",
            hash.finish()
        );
    }
    code.push_str("];\n");
    std::fs::write(out.join("page.rs"), code)
}

/// Every file below a folder but hidden ones and those that are packed.
fn gather(root: &Path, folder: &Path, files: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            gather(root, &path, files)?;
        } else if !name.starts_with('.') && path.extension().is_none_or(|extension| extension != "gz") {
            files.extend(path.strip_prefix(root).ok().map(|path| path.display().to_string()));
        }
    }
    Ok(())
}
