#include "lib/base/release_note.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "lib/base/version.h"

namespace baton {
namespace {

constexpr char kName[] = "Baton";
constexpr uint32_t kType = 1;
// Bounds of what is read of a file.
constexpr size_t kMaxParts = 128;
constexpr size_t kMaxNoteBytes = 64 << 10;
constexpr size_t kMaxReleaseBytes = 64;

constexpr size_t Aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

struct Note {
  Elf64_Nhdr head;
  char name[Aligned(sizeof(kName), 4)];
  char release[Aligned(sizeof(kRelease), 4)];
};

constexpr Note MakeNote() {
  Note note = {{sizeof(kName), sizeof(kRelease), kType}, {}, {}};
  for (size_t i = 0; i < sizeof(kName); ++i) note.name[i] = kName[i];
  for (size_t i = 0; i < sizeof(kRelease); ++i) note.release[i] = kRelease[i];
  return note;
}

// Linkers keep notes that nothing refers to.
[[gnu::used, gnu::section(".note.baton"), gnu::aligned(4)]] constexpr Note kNote = MakeNote();

bool ReadWhole(int file, uint64_t at, void* to, size_t bytes) {
  return pread(file, to, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes);
}

// Returns the release if it is among `notes`, else "".
std::string FindRelease(const std::string& notes, size_t alignment) {
  for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
    Elf64_Nhdr head;
    std::memcpy(&head, notes.data() + at, sizeof(head));
    const size_t name = at + sizeof(head);
    const size_t content = at + Aligned(sizeof(head) + size_t{head.n_namesz}, alignment);
    const size_t end = content + size_t{head.n_descsz};
    if (end > notes.size()) return "";
    if (head.n_type == kType && head.n_namesz == sizeof(kName) &&
        notes.compare(name, sizeof(kName), kName, sizeof(kName)) == 0) {
      const std::string release = notes.substr(content, std::min(end - content, kMaxReleaseBytes));
      return release.substr(0, release.find('\0'));
    }
    at = Aligned(end, alignment);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> ReleaseOfFile(int file) {
  Elf64_Ehdr head;
  const bool is_program =
      ReadWhole(file, 0, &head, sizeof(head)) && std::memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
      head.e_ident[EI_CLASS] == ELFCLASS64 && head.e_phentsize == sizeof(Elf64_Phdr);
  const size_t parts = is_program ? std::min(size_t{head.e_phnum}, kMaxParts) : 0;
  for (size_t i = 0; i < parts; ++i) {
    Elf64_Phdr part;
    if (!ReadWhole(file, head.e_phoff + i * sizeof(part), &part, sizeof(part))) break;
    if (part.p_type != PT_NOTE || part.p_filesz > kMaxNoteBytes) continue;
    std::string notes(part.p_filesz, '\0');
    if (!ReadWhole(file, part.p_offset, notes.data(), notes.size())) continue;
    const std::string release = FindRelease(notes, part.p_align == 8 ? 8 : 4);
    if (!release.empty()) return release;
  }
  return absl::NotFoundError("the file does not tell its release");
}

}  // namespace baton
