// Validates one message of a configuration: collects its problems, and parses its addresses.
#ifndef SUPERVISOR_CONFIG_NODE_H_
#define SUPERVISOR_CONFIG_NODE_H_

#include <arpa/inet.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// An address as in an IPv6 packet. An IPv4 address is mapped into IPv6.
using IpAddress = std::array<uint8_t, 16>;

// Parses an IPv4 or IPv6 literal of a configuration. A GID is an IPv6 literal.
inline std::optional<IpAddress> ParseIpAddress(const std::string& text) {
  IpAddress address = {};
  if (text.find('\0') != std::string::npos) return std::nullopt;
  if (inet_pton(AF_INET6, text.c_str(), address.data()) == 1) return address;
  if (inet_pton(AF_INET, text.c_str(), address.data() + 12) != 1) return std::nullopt;
  address[10] = address[11] = 0xff;
  return address;
}

inline bool IsAddress(const std::string& text) { return ParseIpAddress(text).has_value(); }

// All problems of one configuration, each with its place in the file, so that a user can correct
// them in one go.
class Problems {
 public:
  // `file_name` is empty for a configuration that comes from no file.
  explicit Problems(std::string file_name) : file_name_(std::move(file_name)) {}

  // `line` and `column` count from 1; 0 for no place.
  void AddAt(int line, int column, std::string_view text);

  // Returns kInvalidArgument with one line per problem, or OK if there is none.
  absl::Status ToStatus() const;

 private:
  std::string file_name_;
  std::vector<std::string> lines_;
};

// The range of a number. Limits are inclusive; 0 takes the default.
struct Range {
  const char* field;
  uint64_t default_value;
  uint64_t min;
  uint64_t max;
  bool power_of_two = false;
};

// A message with its name ("services[1]") and its place in the file.
class Node {
 public:
  // `places`: null if there is no file. The references must outlive the node.
  Node(google::protobuf::Message& message, std::string name,
       google::protobuf::TextFormat::ParseInfoTree* places, Problems& problems)
      : message_(message), name_(std::move(name)), places_(places), problems_(problems) {}

  // Adds the problem `text` of `field`, at the field's place in the file, or without a place if the
  // file does not have the field.
  void Refuse(std::string_view field, std::string_view text) const;

  // Returns false if the message comes from no file.
  bool in_file() const { return places_ != nullptr; }

  // Returns the node of the message in `field`, which is made if it is missing. `index`: for a
  // repeated field.
  Node Child(std::string_view field, int index = -1) const;

  // Fills in the default, and adds a problem if the number is out of range.
  void CheckRange(const Range& range) const;

 private:
  const google::protobuf::FieldDescriptor* Find(std::string_view field) const;
  std::string NameOf(std::string_view field) const;

  google::protobuf::Message& message_;
  std::string name_;
  google::protobuf::TextFormat::ParseInfoTree* places_;
  Problems& problems_;
};

// Adds a problem for each value of `plan`, whose node is `node`, that is out of its range.
void CheckFaults(const v1::FaultPlan& plan, const Node& node);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_NODE_H_
