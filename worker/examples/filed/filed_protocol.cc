#include "worker/examples/filed/filed_protocol.h"

#include <algorithm>
#include <cstring>

namespace baton::filed {
namespace {

template <typename T>
void Append(const T& value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Takes a struct from the beginning of `bytes`. Returns false if they are too few.
template <typename T>
bool Take(absl::Span<const uint8_t>* bytes, T* value) {
  if (bytes->size() < sizeof(T)) return false;
  std::memcpy(value, bytes->data(), sizeof(T));
  bytes->remove_prefix(sizeof(T));
  return true;
}

bool TakeText(absl::Span<const uint8_t>* bytes, size_t length, std::string* text) {
  if (bytes->size() < length) return false;
  text->assign(reinterpret_cast<const char*>(bytes->data()), length);
  bytes->remove_prefix(length);
  return true;
}

bool IsKnownType(uint8_t type) {
  return type == static_cast<uint8_t>(FileType::kFile) ||
         type == static_cast<uint8_t>(FileType::kDirectory);
}

bool IsKnownKind(uint8_t kind) {
  return kind >= static_cast<uint8_t>(RequestKind::kList) &&
         kind <= static_cast<uint8_t>(RequestKind::kCancel);
}

}  // namespace

std::string_view ReplyCodeName(ReplyCode code) {
  switch (code) {
    case ReplyCode::kOk:
      return "ok";
    case ReplyCode::kNotFound:
      return "not found";
    case ReplyCode::kDenied:
      return "not served: no permission, a symbolic link, or neither a file nor a directory";
    case ReplyCode::kWrongType:
      return "a directory where a file is meant, or a file where a directory is";
    case ReplyCode::kChanged:
      return "changed meanwhile";
    case ReplyCode::kInvalid:
      return "the server does not understand the request";
    case ReplyCode::kOverloaded:
      return "the server has too many requests: ask again later";
    case ReplyCode::kCanceled:
      return "canceled";
    case ReplyCode::kFailed:
      return "the server cannot read it; its log says why";
  }
  return "an unknown error";
}

bool IsPlainName(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes || name == "." || name == "..") return false;
  return std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || c == '\0'; });
}

bool IsPlainPath(std::string_view path) {
  if (path.empty()) return true;
  if (path.size() > kMaxPathBytes) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (!IsPlainName(path.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty()) path += '/';
  return path.append(name);
}

std::string EncodeRequest(const DecodedRequest& request) {
  Request header = request.header;
  header.magic = kRequestMagic;
  header.version = kProtocolVersion;
  header.path_bytes = static_cast<uint16_t>(request.path.size());
  header.after_bytes = static_cast<uint16_t>(request.after.size());
  std::string bytes;
  Append(header, &bytes);
  return bytes.append(request.path).append(request.after);
}

std::optional<DecodedRequest> DecodeRequest(absl::Span<const uint8_t> message) {
  DecodedRequest request;
  Request& header = request.header;
  if (!Take(&message, &header)) return std::nullopt;
  if (header.magic != kRequestMagic || header.version != kProtocolVersion || header.id == 0 ||
      !IsKnownKind(header.kind)) {
    return std::nullopt;
  }
  if (!TakeText(&message, header.path_bytes, &request.path) ||
      !TakeText(&message, header.after_bytes, &request.after) || !message.empty()) {
    return std::nullopt;
  }
  const bool is_plain =
      IsPlainPath(request.path) && (request.after.empty() || IsPlainName(request.after));
  if (!is_plain) return std::nullopt;
  return request;
}

std::string EncodeReply(const DecodedReply& reply) {
  Reply header = reply.header;
  header.magic = kReplyMagic;
  header.version = kProtocolVersion;
  header.entries = static_cast<uint16_t>(reply.entries.size());
  std::string bytes;
  Append(header, &bytes);
  for (const NamedEntry& one : reply.entries) {
    Entry entry = {};
    entry.info = one.info;
    entry.name_bytes = static_cast<uint16_t>(one.name.size());
    Append(entry, &bytes);
    bytes += one.name;
  }
  return bytes;
}

std::optional<DecodedReply> DecodeReply(absl::Span<const uint8_t> message) {
  DecodedReply reply;
  if (!Take(&message, &reply.header)) return std::nullopt;
  if (reply.header.magic != kReplyMagic || reply.header.version != kProtocolVersion) {
    return std::nullopt;
  }
  for (uint32_t i = 0; i < reply.header.entries; ++i) {
    Entry entry;
    NamedEntry named;
    if (!Take(&message, &entry) || !TakeText(&message, entry.name_bytes, &named.name)) {
      return std::nullopt;
    }
    const bool follows = reply.entries.empty() || reply.entries.back().name < named.name;
    if (!follows || !IsPlainName(named.name) || !IsKnownType(entry.info.type)) return std::nullopt;
    named.info = entry.info;
    reply.entries.push_back(std::move(named));
  }
  if (!message.empty()) return std::nullopt;
  return reply;
}

}  // namespace baton::filed
