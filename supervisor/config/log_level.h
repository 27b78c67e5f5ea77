#ifndef SUPERVISOR_CONFIG_LOG_LEVEL_H_
#define SUPERVISOR_CONFIG_LOG_LEVEL_H_

#include "proto/baton/v1/config.pb.h"
#include "spdlog/common.h"

namespace baton {

inline spdlog::level::level_enum LevelOf(v1::LogLevel level) {
  switch (level) {
    case v1::LOG_LEVEL_DEBUG:
      return spdlog::level::debug;
    case v1::LOG_LEVEL_WARNING:
      return spdlog::level::warn;
    case v1::LOG_LEVEL_ERROR:
      return spdlog::level::err;
    default:
      return spdlog::level::info;
  }
}

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_LOG_LEVEL_H_
