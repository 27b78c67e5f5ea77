// A JSON object that a program printed, read by dotted paths. Missing fields read as zero, so a
// test that needs one asks Has first or compares with what cannot be zero.
#ifndef TESTS_HARNESS_JSON_OBJECT_H_
#define TESTS_HARNESS_JSON_OBJECT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace google::protobuf {
class Struct;
}

namespace baton::harness {

class JsonObject {
 public:
  static absl::StatusOr<JsonObject> Parse(const std::string& text);

  bool Has(const std::string& path) const;
  double Number(const std::string& path) const;
  uint64_t Count(const std::string& path) const { return static_cast<uint64_t>(Number(path)); }
  bool Flag(const std::string& path) const;
  const std::string& text() const { return text_; }

 private:
  std::shared_ptr<const google::protobuf::Struct> object_;
  std::string text_;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_JSON_OBJECT_H_
