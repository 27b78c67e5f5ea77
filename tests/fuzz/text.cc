#include <string>
#include <string_view>

#include "lib/arena/arena.h"
#include "lib/base/check.h"
#include "supervisor/config/config.h"
#include "supervisor/config/shape.h"
#include "supervisor/control/config.h"
#include "tests/fuzz/program.h"

namespace baton::fuzz {
namespace {

std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace

// What is accepted can be run: completing it again changes nothing, every service has a shape that
// an arena can have, no name hides something behind a NUL, and it can be sent in a message.
void ConfigText(const uint8_t* data, size_t size) {
  absl::StatusOr<v1::Config> config = ParseConfig(Text(data, size), "fuzz");
  if (!config.ok()) {
    BATON_CHECK(!config.status().message().empty());
    return;
  }
  const std::string before = config->SerializeAsString();
  BATON_CHECK(v1::Config().ParseFromString(before));
  BATON_CHECK(CompleteConfig(*config).ok());
  BATON_CHECK(config->SerializeAsString() == before);
  BATON_CHECK(config->state_dir().find('\0') == std::string::npos);
  for (const v1::ServiceConfig& service : config->services()) {
    BATON_CHECK(arena::ValidateShape(ShapeOf(service)).ok());
    for (const v1::ListenerConfig& listener : service.listeners()) {
      BATON_CHECK(listener.host().find('\0') == std::string::npos);
    }
  }
}

void ControlConfigText(const uint8_t* data, size_t size) {
  const auto config = ParseControlConfig(std::string(Text(data, size)));
  if (!config.ok()) {
    BATON_CHECK(!config.status().message().empty());
    return;
  }
  BATON_CHECK(config->state_dir().find('\0') == std::string::npos);
}

}  // namespace baton::fuzz
