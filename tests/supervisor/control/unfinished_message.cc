#include "tests/supervisor/control/unfinished_message.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cstddef>
#include <map>

#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"

namespace baton {
namespace {

constexpr int64_t kMaxFramePayload = 16384;
constexpr size_t kFrameHeaderBytes = 9;
constexpr int kSilenceSeconds = 30;

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
};
constexpr uint8_t kAcknowledged = 1;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr int kInitialWindowSize = 4;

std::string Number(uint64_t value, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    text[bytes - 1 - i] = static_cast<char>(value >> (8 * i));
  }
  return text;
}

uint32_t NumberAt(const std::string& text, size_t at, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(text[at + i]);
  return value;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return Number(payload.size(), 3) + Number(type, 1) + Number(flags, 1) + Number(stream, 4) +
         payload;
}

// A literal of HPACK that is not put into its table.
std::string Header(const std::string& name, const std::string& value) {
  return Number(0, 1) + Number(name.size(), 1) + name + Number(value.size(), 1) + value;
}

struct Stream {
  int64_t window = 0;  // beside the initial one
  int64_t sent = 0;
};

class Client {
 public:
  explicit Client(FileDescriptor socket) : socket_(std::move(socket)) {
    const timeval limit = {kSilenceSeconds, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }

  bool Open(const std::string& method, int streams) {
    std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");
    for (int i = 0; i < streams; ++i) {
      const uint32_t id = 1 + 2 * static_cast<uint32_t>(i);
      bytes += Frame(kHeaders, kEndHeaders, id,
                     "\x83\x86" + Header(":path", method) + Header(":authority", "x") +
                         Header("content-type", "application/grpc") + Header("te", "trailers"));
      streams_[id];
    }
    return Write(bytes);
  }

  int64_t Flood(uint32_t announced) {
    const std::string zeros(kMaxFramePayload, '\0');
    const int64_t all = int64_t{announced} + 4;  // with the message's header, without its last byte
    for (;;) {
      bool unfinished = false;
      for (auto& [id, stream] : streams_) {
        for (;;) {
          const int64_t bytes = std::min({window_, initial_window_ + stream.window - stream.sent,
                                          kMaxFramePayload, all - stream.sent});
          if (bytes <= 0) break;
          std::string payload = zeros.substr(0, static_cast<size_t>(bytes));
          if (stream.sent == 0) payload.replace(0, 5, Number(0, 1) + Number(announced, 4));
          if (!Write(Frame(kData, 0, id, payload))) return most_taken_;
          stream.sent += bytes;
          window_ -= bytes;
          taken_ += bytes;
          most_taken_ = std::max(most_taken_, taken_);
        }
        unfinished = unfinished || stream.sent < all;
      }
      if (!unfinished || !ReadFrame()) return most_taken_;
    }
  }

 private:
  bool Write(const std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t sent =
          send(socket_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      done += static_cast<size_t>(sent);
    }
    return true;
  }

  bool Read(size_t bytes, std::string* text) {
    text->resize(bytes);
    return bytes == 0 ||
           recv(socket_.get(), text->data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }

  // False: the connection is over, or nothing comes any more.
  bool ReadFrame() {
    std::string header, payload;
    if (!Read(kFrameHeaderBytes, &header)) return false;
    if (!Read(NumberAt(header, 0, 3), &payload)) return false;
    const uint8_t type = static_cast<uint8_t>(header[3]), flags = static_cast<uint8_t>(header[4]);
    const uint32_t id = NumberAt(header, 5, 4);
    if (type == kSettings && (flags & kAcknowledged) == 0) {
      for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
        if (NumberAt(payload, at, 2) == kInitialWindowSize) {
          initial_window_ = NumberAt(payload, at + 2, 4);
        }
      }
      return Write(Frame(kSettings, kAcknowledged, 0, ""));
    }
    if (type == kPing && (flags & kAcknowledged) == 0) {
      return Write(Frame(kPing, kAcknowledged, 0, payload));
    }
    if (type == kWindowUpdate) {
      if (id == 0) window_ += NumberAt(payload, 0, 4);
      const auto stream = streams_.find(id);
      if (stream != streams_.end()) stream->second.window += NumberAt(payload, 0, 4);
    }
    if (type == kResetStream || (type == kHeaders && (flags & kEndStream) != 0)) {
      const auto ended = streams_.find(id);
      if (ended != streams_.end()) {
        taken_ -= ended->second.sent;
        streams_.erase(ended);
      }
    }
    return type != kGoAway && !streams_.empty();
  }

  const FileDescriptor socket_;
  int64_t window_ = 65535;  // of the connection
  int64_t initial_window_ = 65535;
  int64_t taken_ = 0;  // of the streams that have not ended
  int64_t most_taken_ = 0;
  std::map<uint32_t, Stream> streams_;
};

}  // namespace

int64_t SendUnfinished(const std::string& socket_path, const std::string& method, int streams,
                       uint32_t announced) {
  absl::StatusOr<FileDescriptor> socket = ConnectUnix(socket_path);
  if (!socket.ok()) return -1;
  Client client(*std::move(socket));
  return client.Open(method, streams) ? client.Flood(announced) : -1;
}

}  // namespace baton
