// The messages of filed, which serves the files below a directory over a stream (lib/stream).
//
// A client sends requests and has at most kMaxRequests unanswered. The server answers them one
// after another, in order. Only a kOverloaded for more than kMaxRequests comes at once.
//   kList    a Reply with `entries` Entry structs, each followed by its name, in ascending order of
//            names; `more`: ask again, with the last name as `after`
//   kStat    a Reply with `info`
//   kGet     pieces of the range, in order (lib/stream/file_pieces.h), whose `transfer` is the
//            request's id. The last byte of the range is the answer's end. A Reply with an error
//            takes the place of the rest.
//   kCancel  nothing of its own: the request with that id is answered with kCanceled, in place of
//            what is left of its answer
//
// All structs are little-endian and without padding. Paths are relative to the served directory:
// plain names with '/' between them; the empty path is the directory itself. Names are bytes, not
// text: whoever shows one escapes it.
#ifndef WORKER_EXAMPLES_FILED_FILED_PROTOCOL_H_
#define WORKER_EXAMPLES_FILED_FILED_PROTOCOL_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace baton::filed {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kRequestMagic = 0x5146'4e42;  // "BNFQ"
inline constexpr uint32_t kReplyMagic = 0x5246'4e42;    // "BNFR"
inline constexpr uint16_t kProtocolVersion = 1;

inline constexpr uint32_t kMaxRequests = 8;
inline constexpr uint32_t kMaxPathBytes = 1024;
inline constexpr uint32_t kMaxNameBytes = 255;
inline constexpr uint32_t kMaxListBytes = 16384;  // entries of one Reply, with their names

enum class RequestKind : uint8_t { kList = 1, kStat = 2, kGet = 3, kCancel = 4 };

struct Request {
  uint32_t magic;  // kRequestMagic
  uint16_t version;
  uint8_t kind;  // RequestKind
  uint8_t reserved;
  uint64_t id;  // never 0; no two unanswered requests have the same one
  // kGet: the range, at least one byte, and the file's identity as the client knows it. A file with
  // another size or time is refused with kChanged.
  uint64_t offset;
  uint64_t length;
  uint64_t file_size;
  int64_t file_mtime_ns;
  uint16_t path_bytes;
  uint16_t after_bytes;  // kList: names up to this one are left out
  uint32_t reserved2;
};
static_assert(offsetof(Request, id) == 8);
static_assert(offsetof(Request, path_bytes) == 48);
static_assert(sizeof(Request) == 56);

inline constexpr uint32_t kMaxRequestBytes = sizeof(Request) + kMaxPathBytes + kMaxNameBytes;

enum class FileType : uint8_t { kFile = 1, kDirectory = 2 };

struct FileInfo {
  uint64_t size;  // of a directory: 0
  int64_t mtime_ns;
  uint8_t type;  // FileType
  uint8_t reserved[7];
};
static_assert(sizeof(FileInfo) == 24);

enum class ReplyCode : uint8_t {
  kOk = 0,
  kNotFound = 1,
  kDenied = 2,  // no permission, a symbolic link, or neither a file nor a directory
  kWrongType = 3,
  kChanged = 4,  // the file is not the one that the request means, or has changed meanwhile
  kInvalid = 5,
  // More than kMaxRequests are unanswered: ask again when one is. Or the server had no memory for
  // the request: ask again later.
  kOverloaded = 6,
  kCanceled = 7,
  kFailed = 8,  // the server could not read; its log says why
};
std::string_view ReplyCodeName(ReplyCode code);

struct Reply {
  uint32_t magic;  // kReplyMagic
  uint16_t version;
  uint8_t kind;  // the request's
  uint8_t code;  // ReplyCode
  uint64_t id;   // the request's
  FileInfo info;
  uint16_t entries;
  uint8_t more;
  uint8_t reserved[5];
};
static_assert(offsetof(Reply, info) == 16);
static_assert(sizeof(Reply) == 48);

struct Entry {
  FileInfo info;
  uint16_t name_bytes;
  uint8_t reserved[6];
};
static_assert(sizeof(Entry) == 32);

inline constexpr uint32_t kMaxReplyBytes = sizeof(Reply) + kMaxListBytes;

// Returns true for a name that can be that of an entry of a directory: not empty, neither "." nor
// "..", without '/' and NUL, at most kMaxNameBytes.
bool IsPlainName(std::string_view name);
// Returns true for plain names with '/' between them, and for the empty path; at most
// kMaxPathBytes.
bool IsPlainPath(std::string_view path);
// Returns "directory/name", and `name` alone in the empty path.
std::string JoinPath(std::string_view directory, std::string_view name);

struct DecodedRequest {
  Request header;
  std::string path;
  std::string after;
};
std::string EncodeRequest(const DecodedRequest& request);
// Sets magic, version and lengths; returns nothing if `message` is not a request of this version
// within the limits, with a plain path.
std::optional<DecodedRequest> DecodeRequest(absl::Span<const uint8_t> message);

struct NamedEntry {
  std::string name;
  FileInfo info;
};
// Returns what an entry of that name takes of kMaxListBytes.
constexpr size_t EntryBytes(std::string_view name) { return sizeof(Entry) + name.size(); }

struct DecodedReply {
  Reply header;
  std::vector<NamedEntry> entries;
};
// REQUIRES: the entries have at most kMaxListBytes.
std::string EncodeReply(const DecodedReply& reply);
// Returns nothing if `message` is not a reply of this version, or has entries that are not in
// ascending order with plain names and known types.
std::optional<DecodedReply> DecodeReply(absl::Span<const uint8_t> message);

}  // namespace baton::filed

#endif  // WORKER_EXAMPLES_FILED_FILED_PROTOCOL_H_
