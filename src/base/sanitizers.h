// Which sanitizers this code is built with. GCC and clang say it in different ways.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define FSDP_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FSDP_ADDRESS_SANITIZER 1
#endif
#endif
#ifndef FSDP_ADDRESS_SANITIZER
#define FSDP_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__)
#define FSDP_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FSDP_THREAD_SANITIZER 1
#endif
#endif
#ifndef FSDP_THREAD_SANITIZER
#define FSDP_THREAD_SANITIZER 0
#endif
